// expect: labels must have one entry per row of [4, 3], got shape [5]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %y = cirh.input "y" : tensor<5xi32>
  %0 = cirh.nll_loss_forward %x, %y {ignore_index = -100 : i64} : (tensor<4x3xf32>, tensor<5xi32>) -> tensor<f32>
}
