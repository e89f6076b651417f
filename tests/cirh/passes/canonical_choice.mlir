// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %y = cirh.input "y" : tensor<3xf64>
  %0 = cirh.full {value = 0.000000e+00 : f64} : tensor<i1>
  %1 = cirh.where %0, %y, %x : (tensor<i1>, tensor<3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  %2 = cirh.full {value = 1.000000e+00 : f64} : tensor<i1>
  %3 = cirh.where %2, %y, %1 : (tensor<i1>, tensor<3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %3 : tensor<2x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %y = cirh.input "y" : tensor<3xf64>
  %0 = cirh.full {value = 0.000000e+00 : f64} : tensor<i1>
  %1 = cirh.full {value = 1.000000e+00 : f64} : tensor<i1>
  %2 = cirh.where %1, %y, %x : (tensor<i1>, tensor<3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %2 : tensor<2x3xf64>
}
