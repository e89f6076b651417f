// pass: splitting
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %w = cirh.input "w" : tensor<3x4xf64>
  %row = cirh.input "row" : tensor<4xf64>
  %grad = cirh.input "grad" : tensor<2x4xf64>
  %0 = cirh.addmm %row, %x, %w {scope = "fc"} : (tensor<4xf64>, tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %1 = cirh.gelu %0 {scope = "fc", approximate = "tanh"} : (tensor<2x4xf64>) -> tensor<2x4xf64>
  %2 = cirh.gelu %1 {approximate = "none"} : (tensor<2x4xf64>) -> tensor<2x4xf64>
  %3 = cirh.gelu_backward %grad, %1 {approximate = "none"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %4 = cirh.gelu_backward %3, %0 {scope = "fc", approximate = "tanh"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %5 = cirh.gelu %2 {approximate = "none"} : (tensor<2x4xf64>) -> tensor<2x4xf64>
  %6 = cirh.gelu_backward %grad, %2 {approximate = "none"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  cirh.output "kept" %2 : tensor<2x4xf64>
  cirh.output "gelu" %5 : tensor<2x4xf64>
  cirh.output "one" %4 : tensor<2x4xf64>
  cirh.output "other" %6 : tensor<2x4xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %w = cirh.input "w" : tensor<3x4xf64>
  %row = cirh.input "row" : tensor<4xf64>
  %grad = cirh.input "grad" : tensor<2x4xf64>
  %0 = cirh.mm %x, %w {scope = "fc"} : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %1 = cirh.add %0, %row {scope = "fc"} : (tensor<2x4xf64>, tensor<4xf64>) -> tensor<2x4xf64>
  %2 = cirh.gelu_cdf %1 {scope = "fc", approximate = "tanh"} : (tensor<2x4xf64>) -> tensor<2x4xf64>
  %3 = cirh.mul %1, %2 {scope = "fc"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %4 = cirh.gelu_slope %1, %2, %3 {scope = "fc", approximate = "tanh"} : (tensor<2x4xf64>, tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %5 = cirh.gelu %3 {approximate = "none"} : (tensor<2x4xf64>) -> tensor<2x4xf64>
  %6 = cirh.gelu_backward %grad, %3 {approximate = "none"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %7 = cirh.mul %6, %4 {scope = "fc"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %8 = cirh.gelu %5 {approximate = "none"} : (tensor<2x4xf64>) -> tensor<2x4xf64>
  %9 = cirh.gelu_backward %grad, %5 {approximate = "none"} : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  cirh.output "kept" %5 : tensor<2x4xf64>
  cirh.output "gelu" %8 : tensor<2x4xf64>
  cirh.output "one" %7 : tensor<2x4xf64>
  cirh.output "other" %9 : tensor<2x4xf64>
}
