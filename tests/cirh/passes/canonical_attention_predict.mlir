// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %q = cirh.input "q" : tensor<2x1x3x4xf64>
  %kept = cirh.dropout_mask {rate = 5.000000e-01 : f64, stream = 0 : i64, rows = 1 : i64, runs = 3 : i64} : tensor<2x1x3x3xi1>
  %0, %1 = cirh.scaled_dot_product_attention %q, %q, %q, %kept {is_causal = true, scale = 5.000000e-01 : f64, dropout = 5.000000e-01 : f64} : (tensor<2x1x3x4xf64>, tensor<2x1x3x4xf64>, tensor<2x1x3x4xf64>, tensor<2x1x3x3xi1>) -> (tensor<2x1x3x4xf64>, tensor<2x1x3xf64>)
  cirh.output "out" %0 : tensor<2x1x3x4xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %q = cirh.input "q" : tensor<2x1x3x4xf64>
  %kept = cirh.dropout_mask {rate = 5.000000e-01 : f64, stream = 0 : i64, rows = 1 : i64, runs = 3 : i64} : tensor<2x1x3x3xi1>
  %0, %1 = cirh.scaled_dot_product_attention %q, %q, %q {is_causal = true, scale = 5.000000e-01 : f64} : (tensor<2x1x3x4xf64>, tensor<2x1x3x4xf64>, tensor<2x1x3x4xf64>) -> (tensor<2x1x3x4xf64>, tensor<2x1x3xf64>)
  cirh.output "out" %0 : tensor<2x1x3x4xf64>
}
