// expect: at most one mask is allowed, got 2
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %q = cirh.input "q" : tensor<2x2x4x3xf32>
  %m = cirh.input "m" : tensor<4x4xi1>
  %0, %1 = cirh.scaled_dot_product_attention %q, %q, %q, %m, %m {is_causal = false, scale = 5.000000e-01 : f64} : (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<4x4xi1>, tensor<4x4xi1>) -> (tensor<2x2x4x3xf32>, tensor<2x2x4xf32>)
}
