// expect: key and value must have equal lengths, got [2, 2, 4, 3] and [2, 2, 5, 3]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %q = cirh.input "q" : tensor<2x2x4x3xf32>
  %v = cirh.input "v" : tensor<2x2x5x3xf32>
  %0, %1 = cirh.scaled_dot_product_attention %q, %q, %v {is_causal = false, scale = 5.000000e-01 : f64} : (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x5x3xf32>) -> (tensor<2x2x4x3xf32>, tensor<2x2x4xf32>)
}
