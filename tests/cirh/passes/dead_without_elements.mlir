// pass: dead
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<4x0xf64>
  %0 = cirh.exp %x : (tensor<4x0xf64>) -> tensor<4x0xf64>
  %1 = cirh.t %0 : (tensor<4x0xf64>) -> tensor<0x4xf64>
  %2 = cirh.sum %0 {dims = array<i64: 1>, keepdim = false} : (tensor<4x0xf64>) -> tensor<4xf64>
  cirh.output "empty" %1 : tensor<0x4xf64>
  cirh.output "sum" %2 : tensor<4xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<4x0xf64>
  %0 = cirh.full {value = 0.000000e+00 : f64} : tensor<0x4xf64>
  %1 = cirh.full {value = 0.000000e+00 : f64} : tensor<4xf64>
  cirh.output "empty" %0 : tensor<0x4xf64>
  cirh.output "sum" %1 : tensor<4xf64>
}
