// pass: copies
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3x4xf64>
  %y = cirh.input "y" : tensor<12x1xf64>
  %0 = cirh.permute %x {dims = array<i64: 1, 0, 2>} : (tensor<2x3x4xf64>) -> tensor<3x2x4xf64>
  %1 = cirh.view %0 {shape = array<i64: 3, 2, 2, 2>} : (tensor<3x2x4xf64>) -> tensor<3x2x2x2xf64>
  %2 = cirh.view %0 {scope = "here", shape = array<i64: 6, 4>} : (tensor<3x2x4xf64>) -> tensor<6x4xf64>
  %3 = cirh.view %0 {shape = array<i64: 2, 12>} : (tensor<3x2x4xf64>) -> tensor<2x12xf64>
  %4 = cirh.expand %y {shape = array<i64: 12, 5>} : (tensor<12x1xf64>) -> tensor<12x5xf64>
  %5 = cirh.mm %3, %4 : (tensor<2x12xf64>, tensor<12x5xf64>) -> tensor<2x5xf64>
  %6 = cirh.t %2 : (tensor<6x4xf64>) -> tensor<4x6xf64>
  %7 = cirh.mm %2, %6 : (tensor<6x4xf64>, tensor<4x6xf64>) -> tensor<6x6xf64>
  %8 = cirh.full {value = 2.000000e+00 : f64} : tensor<2x5xf64>
  %9 = cirh.mul %5, %8 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  cirh.output "one" %1 : tensor<3x2x2x2xf64>
  cirh.output "two" %7 : tensor<6x6xf64>
  cirh.output "three" %8 : tensor<2x5xf64>
  cirh.output "four" %9 : tensor<2x5xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3x4xf64>
  %y = cirh.input "y" : tensor<12x1xf64>
  %0 = cirh.permute %x {dims = array<i64: 1, 0, 2>} : (tensor<2x3x4xf64>) -> tensor<3x2x4xf64>
  %1 = cirh.view %0 {shape = array<i64: 3, 2, 2, 2>} : (tensor<3x2x4xf64>) -> tensor<3x2x2x2xf64>
  %2 = cirh.clone %0 {scope = "here"} : (tensor<3x2x4xf64>) -> tensor<3x2x4xf64>
  %3 = cirh.view %2 {scope = "here", shape = array<i64: 6, 4>} : (tensor<3x2x4xf64>) -> tensor<6x4xf64>
  %4 = cirh.view %2 {shape = array<i64: 2, 12>} : (tensor<3x2x4xf64>) -> tensor<2x12xf64>
  %5 = cirh.expand %y {shape = array<i64: 12, 5>} : (tensor<12x1xf64>) -> tensor<12x5xf64>
  %6 = cirh.clone %5 : (tensor<12x5xf64>) -> tensor<12x5xf64>
  %7 = cirh.mm %4, %6 : (tensor<2x12xf64>, tensor<12x5xf64>) -> tensor<2x5xf64>
  %8 = cirh.t %3 : (tensor<6x4xf64>) -> tensor<4x6xf64>
  %9 = cirh.mm %3, %8 : (tensor<6x4xf64>, tensor<4x6xf64>) -> tensor<6x6xf64>
  %10 = cirh.full {value = 2.000000e+00 : f64} : tensor<2x5xf64>
  %11 = cirh.clone %10 : (tensor<2x5xf64>) -> tensor<2x5xf64>
  %12 = cirh.mul %7, %10 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  cirh.output "one" %1 : tensor<3x2x2x2xf64>
  cirh.output "two" %9 : tensor<6x6xf64>
  cirh.output "three" %11 : tensor<2x5xf64>
  cirh.output "four" %12 : tensor<2x5xf64>
}
