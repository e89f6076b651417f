// pass: common
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf64>
  %a = cirh.parameter "one/bias" {scope = "one", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %b = cirh.parameter "two/bias" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %0 = cirh.sum %x {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf64>) -> tensor<3xf64>
  %1 = cirh.sum %x {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf64>) -> tensor<3xf64>
  cirh.sgd %a, %0 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<3xf64>, tensor<3xf64>
  cirh.sgd %b, %1 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<3xf64>, tensor<3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf64>
  %a = cirh.parameter "one/bias" {scope = "one", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %b = cirh.parameter "two/bias" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %0 = cirh.sum %x {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf64>) -> tensor<3xf64>
  %1 = cirh.sum %x {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf64>) -> tensor<3xf64>
  cirh.sgd %a, %0 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<3xf64>, tensor<3xf64>
  cirh.sgd %b, %1 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<3xf64>, tensor<3xf64>
}
