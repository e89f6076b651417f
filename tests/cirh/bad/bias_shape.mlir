// expect: bias must have shape [2], got [3]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %b = cirh.input "b" : tensor<3xf32>
  %w = cirh.input "w" : tensor<3x2xf32>
  %0 = cirh.addmm %b, %x, %w : (tensor<3xf32>, tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
}
