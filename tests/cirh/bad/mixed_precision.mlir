// expect: operands must have the same element type, got float32, float64
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %y = cirh.input "y" : tensor<4x3xf64>
  %0 = cirh.add %x, %y : (tensor<4x3xf32>, tensor<4x3xf64>) -> tensor<4x3xf32>
}
