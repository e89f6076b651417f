// pass: common
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x2xf64>
  %0 = cirh.t %x {scope = "first"} : (tensor<2x2xf64>) -> tensor<2x2xf64>
  %1 = cirh.t %x {scope = "second"} : (tensor<2x2xf64>) -> tensor<2x2xf64>
  %2 = cirh.mm %x, %0 : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %3 = cirh.mm %x, %1 : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %4 = cirh.mm %1, %x : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %5 = cirh.sum %2 {dims = array<i64: 0>, keepdim = true} : (tensor<2x2xf64>) -> tensor<1x2xf64>
  %6 = cirh.sum %2 {dims = array<i64: 1>, keepdim = true} : (tensor<2x2xf64>) -> tensor<2x1xf64>
  %7 = cirh.add %3, %4 : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %8 = cirh.add %7, %5 : (tensor<2x2xf64>, tensor<1x2xf64>) -> tensor<2x2xf64>
  %9 = cirh.add %8, %6 : (tensor<2x2xf64>, tensor<2x1xf64>) -> tensor<2x2xf64>
  cirh.output "out" %9 : tensor<2x2xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x2xf64>
  %0 = cirh.t %x {scope = "first"} : (tensor<2x2xf64>) -> tensor<2x2xf64>
  %1 = cirh.mm %x, %0 : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %2 = cirh.mm %0, %x : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %3 = cirh.sum %1 {dims = array<i64: 0>, keepdim = true} : (tensor<2x2xf64>) -> tensor<1x2xf64>
  %4 = cirh.sum %1 {dims = array<i64: 1>, keepdim = true} : (tensor<2x2xf64>) -> tensor<2x1xf64>
  %5 = cirh.add %1, %2 : (tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>
  %6 = cirh.add %5, %3 : (tensor<2x2xf64>, tensor<1x2xf64>) -> tensor<2x2xf64>
  %7 = cirh.add %6, %4 : (tensor<2x2xf64>, tensor<2x1xf64>) -> tensor<2x2xf64>
  cirh.output "out" %7 : tensor<2x2xf64>
}
