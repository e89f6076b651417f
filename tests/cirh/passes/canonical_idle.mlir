// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.view %x {shape = array<i64: 6>} : (tensor<2x3xf64>) -> tensor<6xf64>
  %1 = cirh.view %0 {shape = array<i64: 3, 2>} : (tensor<6xf64>) -> tensor<3x2xf64>
  %2 = cirh.t %1 : (tensor<3x2xf64>) -> tensor<2x3xf64>
  %3 = cirh.t %2 : (tensor<2x3xf64>) -> tensor<3x2xf64>
  %4 = cirh.permute %3 {dims = array<i64: 0, 1>} : (tensor<3x2xf64>) -> tensor<3x2xf64>
  %5 = cirh.expand %4 {shape = array<i64: 3, 2>} : (tensor<3x2xf64>) -> tensor<3x2xf64>
  cirh.output "out" %5 : tensor<3x2xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.view %x {shape = array<i64: 6>} : (tensor<2x3xf64>) -> tensor<6xf64>
  %1 = cirh.view %x {shape = array<i64: 3, 2>} : (tensor<2x3xf64>) -> tensor<3x2xf64>
  %2 = cirh.t %1 : (tensor<3x2xf64>) -> tensor<2x3xf64>
  cirh.output "out" %1 : tensor<3x2xf64>
}
