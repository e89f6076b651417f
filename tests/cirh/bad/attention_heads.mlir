// expect: query, key and value must agree in batch, heads and head size, got [2, 2, 4, 3], [2, 1, 4, 3] and [2, 1, 4, 3]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %q = cirh.input "q" : tensor<2x2x4x3xf32>
  %k = cirh.input "k" : tensor<2x1x4x3xf32>
  %0, %1 = cirh.scaled_dot_product_attention %q, %k, %k {is_causal = false, scale = 5.000000e-01 : f64} : (tensor<2x2x4x3xf32>, tensor<2x1x4x3xf32>, tensor<2x1x4x3xf32>) -> (tensor<2x2x4x3xf32>, tensor<2x2x4xf32>)
}
