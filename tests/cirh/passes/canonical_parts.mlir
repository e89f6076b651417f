// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %y = cirh.input "y" : tensor<2x1xf64>
  %z = cirh.input "z" : tensor<2xf64>
  %0 = cirh.slice_backward %x {scope = "here", input_sizes = array<i64: 2, 5>, dim = 1 : i64, start = 1 : i64, end = 4 : i64, step = 1 : i64} : (tensor<2x3xf64>) -> tensor<2x5xf64>
  %1 = cirh.select_backward %z {scope = "here", input_sizes = array<i64: 2, 5>, dim = 1 : i64, index = 4 : i64} : (tensor<2xf64>) -> tensor<2x5xf64>
  %2 = cirh.add %0, %1 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  %3 = cirh.slice_backward %y {input_sizes = array<i64: 2, 5>, dim = 1 : i64, start = 0 : i64, end = 1 : i64, step = 1 : i64} : (tensor<2x1xf64>) -> tensor<2x5xf64>
  %4 = cirh.add %2, %3 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  %5 = cirh.add %0, %0 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  cirh.output "whole" %4 : tensor<2x5xf64>
  cirh.output "part" %5 : tensor<2x5xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %y = cirh.input "y" : tensor<2x1xf64>
  %z = cirh.input "z" : tensor<2xf64>
  %0 = cirh.slice_backward %x {scope = "here", input_sizes = array<i64: 2, 5>, dim = 1 : i64, start = 1 : i64, end = 4 : i64, step = 1 : i64} : (tensor<2x3xf64>) -> tensor<2x5xf64>
  %1 = cirh.view %z {shape = array<i64: 2, 1>, scope = "here"} : (tensor<2xf64>) -> tensor<2x1xf64>
  %2 = cirh.slice_backward %1 {dim = 1 : i64, start = 4 : i64, end = 5 : i64, step = 1 : i64, input_sizes = array<i64: 2, 5>, scope = "here"} : (tensor<2x1xf64>) -> tensor<2x5xf64>
  %3 = cirh.add %0, %2 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  %4 = cirh.slice_backward %y {input_sizes = array<i64: 2, 5>, dim = 1 : i64, start = 0 : i64, end = 1 : i64, step = 1 : i64} : (tensor<2x1xf64>) -> tensor<2x5xf64>
  %5 = cirh.cat %y, %x, %1 {dim = 1 : i64} : (tensor<2x1xf64>, tensor<2x3xf64>, tensor<2x1xf64>) -> tensor<2x5xf64>
  %6 = cirh.add %0, %0 : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
  cirh.output "whole" %5 : tensor<2x5xf64>
  cirh.output "part" %6 : tensor<2x5xf64>
}
