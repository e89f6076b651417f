// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %mask = cirh.dropout_mask {scope = "drop", rate = 5.000000e-01 : f64, stream = 0 : i64} : tensor<2x3xi1>
  %0 = cirh._masked_scale %x, %mask {scale = 2.000000e+00 : f64} : (tensor<2x3xf64>, tensor<2x3xi1>) -> tensor<2x3xf64>
  cirh.output "out" %0 : tensor<2x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %mask = cirh.dropout_mask {scope = "drop", rate = 5.000000e-01 : f64, stream = 0 : i64} : tensor<2x3xi1>
  %0 = cirh._masked_scale %x, %mask {scale = 2.000000e+00 : f64} : (tensor<2x3xf64>, tensor<2x3xi1>) -> tensor<2x3xf64>
  cirh.output "out" %0 : tensor<2x3xf64>
}
