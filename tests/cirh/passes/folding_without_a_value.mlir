// pass: folding
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %zero = cirh.full {value = 0.000000e+00 : f64} : tensor<f64>
  %one = cirh.full {value = 1.000000e+03 : f64} : tensor<f64>
  %0 = cirh.log %zero : (tensor<f64>) -> tensor<f64>
  %1 = cirh.div %one, %zero : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %2 = cirh.exp %one : (tensor<f64>) -> tensor<f64>
  cirh.output "a" %0 : tensor<f64>
  cirh.output "b" %1 : tensor<f64>
  cirh.output "c" %2 : tensor<f64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %zero = cirh.full {value = 0.000000e+00 : f64} : tensor<f64>
  %one = cirh.full {value = 1.000000e+03 : f64} : tensor<f64>
  %0 = cirh.log %zero : (tensor<f64>) -> tensor<f64>
  %1 = cirh.div %one, %zero : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %2 = cirh.exp %one : (tensor<f64>) -> tensor<f64>
  cirh.output "a" %0 : tensor<f64>
  cirh.output "b" %1 : tensor<f64>
  cirh.output "c" %2 : tensor<f64>
}
