// pass: folding
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.full {value = 2.000000e+00 : f64} : tensor<f64>
  %1 = cirh.full {value = 8.000000e+00 : f64} : tensor<f64>
  %2 = cirh.mul %0, %1 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %3 = cirh.sqrt %2 : (tensor<f64>) -> tensor<f64>
  %4 = cirh.expand %3 {shape = array<i64: 3>} : (tensor<f64>) -> tensor<3xf64>
  %5 = cirh.add %x, %4 : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %5 : tensor<2x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.full {value = 2.000000e+00 : f64} : tensor<f64>
  %1 = cirh.full {value = 8.000000e+00 : f64} : tensor<f64>
  %2 = cirh.full {value = 1.600000e+01 : f64} : tensor<f64>
  %3 = cirh.full {value = 4.000000e+00 : f64} : tensor<f64>
  %4 = cirh.full {value = 4.000000e+00 : f64} : tensor<3xf64>
  %5 = cirh.add %x, %4 : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %5 : tensor<2x3xf64>
}
