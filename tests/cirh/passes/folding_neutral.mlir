// pass: folding
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %row = cirh.input "row" : tensor<3xf64>
  %zero = cirh.full {value = 0.000000e+00 : f64} : tensor<f64>
  %one = cirh.full {value = 1.000000e+00 : f64} : tensor<f64>
  %ones = cirh.full {value = 1.000000e+00 : f64} : tensor<2x3xf64>
  %0 = cirh.add %zero, %x : (tensor<f64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  %1 = cirh.sub %0, %zero : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  %2 = cirh.div %1, %one : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
  %3 = cirh.sub %zero, %2 : (tensor<f64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  %4 = cirh.mul %row, %ones : (tensor<3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  %5 = cirh.add %3, %4 : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %5 : tensor<2x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %row = cirh.input "row" : tensor<3xf64>
  %zero = cirh.full {value = 0.000000e+00 : f64} : tensor<f64>
  %one = cirh.full {value = 1.000000e+00 : f64} : tensor<f64>
  %ones = cirh.full {value = 1.000000e+00 : f64} : tensor<2x3xf64>
  %0 = cirh.sub %zero, %x : (tensor<f64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  %1 = cirh.mul %row, %ones : (tensor<3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  %2 = cirh.add %0, %1 : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %2 : tensor<2x3xf64>
}
