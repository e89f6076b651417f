// pass: dead
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %unused = cirh.input "unused" : tensor<2xf64>
  %0 = cirh.exp %x : (tensor<2x3xf64>) -> tensor<2x3xf64>
  %1 = cirh.log %0 : (tensor<2x3xf64>) -> tensor<2x3xf64>
  %2 = cirh.neg %1 : (tensor<2x3xf64>) -> tensor<2x3xf64>
  %3 = cirh.full {value = 2.000000e+00 : f64} : tensor<f64>
  cirh.output "out" %0 : tensor<2x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %unused = cirh.input "unused" : tensor<2xf64>
  %0 = cirh.exp %x : (tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %0 : tensor<2x3xf64>
}
