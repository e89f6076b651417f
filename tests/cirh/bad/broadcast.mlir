// expect: shapes [4, 3] and [3, 4] do not broadcast
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %y = cirh.input "y" : tensor<3x4xf32>
  %0 = cirh.add %x, %y : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x3xf32>
}
