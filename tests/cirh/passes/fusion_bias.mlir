// pass: fusion
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %w = cirh.input "w" : tensor<3x4xf64>
  %row = cirh.input "row" : tensor<4xf64>
  %full = cirh.input "full" : tensor<2x4xf64>
  %0 = cirh.mm %x, %w {scope = "fc"} : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %1 = cirh.add %row, %0 : (tensor<4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %2 = cirh.mm %x, %w : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %3 = cirh.add %2, %full : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %4 = cirh.mm %x, %w : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %5 = cirh.add %4, %row : (tensor<2x4xf64>, tensor<4xf64>) -> tensor<2x4xf64>
  cirh.output "fused" %1 : tensor<2x4xf64>
  cirh.output "also_read" %4 : tensor<2x4xf64>
  cirh.output "kept" %5 : tensor<2x4xf64>
  cirh.output "out" %3 : tensor<2x4xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %w = cirh.input "w" : tensor<3x4xf64>
  %row = cirh.input "row" : tensor<4xf64>
  %full = cirh.input "full" : tensor<2x4xf64>
  %0 = cirh.addmm %row, %x, %w {scope = "fc"} : (tensor<4xf64>, tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %1 = cirh.mm %x, %w : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %2 = cirh.add %1, %full : (tensor<2x4xf64>, tensor<2x4xf64>) -> tensor<2x4xf64>
  %3 = cirh.mm %x, %w : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %4 = cirh.add %3, %row : (tensor<2x4xf64>, tensor<4xf64>) -> tensor<2x4xf64>
  cirh.output "fused" %0 : tensor<2x4xf64>
  cirh.output "also_read" %3 : tensor<2x4xf64>
  cirh.output "kept" %4 : tensor<2x4xf64>
  cirh.output "out" %2 : tensor<2x4xf64>
}
