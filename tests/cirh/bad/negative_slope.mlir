// expect: cirh.leaky_relu in the model: negative_slope must be in [0, 1], got -0.5
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4xf32>
  %0 = cirh.leaky_relu %x {negative_slope = -0.5 : f64} : (tensor<4xf32>) -> tensor<4xf32>
}
