// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %y = cirh.input "y" : tensor<3xf64>
  %0 = cirh.neg %y : (tensor<3xf64>) -> tensor<3xf64>
  %1 = cirh.add %x, %0 {scope = "here"} : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  %2 = cirh.sub %1, %0 : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  %3 = cirh.neg %2 : (tensor<2x3xf64>) -> tensor<2x3xf64>
  %4 = cirh.neg %3 : (tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %4 : tensor<2x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %y = cirh.input "y" : tensor<3xf64>
  %0 = cirh.neg %y : (tensor<3xf64>) -> tensor<3xf64>
  %1 = cirh.sub %x, %y {scope = "here"} : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  %2 = cirh.add %1, %y : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
  %3 = cirh.neg %2 : (tensor<2x3xf64>) -> tensor<2x3xf64>
  cirh.output "out" %2 : tensor<2x3xf64>
}
