// expect: cirh.t in the model: result must be tensor<3x4xf32>, got tensor<4x3xf32>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.t %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
}
