// expect: cirh.native_layer_norm in the model: the weight must have the last axes of [4, 3], got [4]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %w = cirh.input "w" : tensor<4xf32>
  %0, %1, %2 = cirh.native_layer_norm %x, %w, %w {eps = 1.000000e-05 : f64} : (tensor<4x3xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4x3xf32>, tensor<4x1xf32>, tensor<4x1xf32>)
}
