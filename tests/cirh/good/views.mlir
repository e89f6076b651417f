builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.clone %x : (tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %0 : tensor<2x3xf64>
}
