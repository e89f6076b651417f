// expect: labels must be integers, got float32
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %y = cirh.input "y" : tensor<4xf32>
  %0 = cirh.nll_loss_forward %x, %y {ignore_index = -100 : i64} : (tensor<4x3xf32>, tensor<4xf32>) -> tensor<f32>
}
