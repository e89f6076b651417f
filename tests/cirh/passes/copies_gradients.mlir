// pass: copies
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf64>
  %a = cirh.parameter "one/bias" {scope = "one", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %b = cirh.parameter "two/bias" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %c = cirh.parameter "two/scale" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3x4xf64>
  %d = cirh.parameter "two/shift" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x3xf64>
  %0 = cirh.sum %x {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf64>) -> tensor<3xf64>
  %1 = cirh.neg %x : (tensor<4x3xf64>) -> tensor<4x3xf64>
  %2 = cirh.t %1 : (tensor<4x3xf64>) -> tensor<3x4xf64>
  cirh.sgd %a, %0 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "one"} : tensor<3xf64>, tensor<3xf64>
  cirh.sgd %b, %0 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "two"} : tensor<3xf64>, tensor<3xf64>
  cirh.sgd %c, %2 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "two"} : tensor<3x4xf64>, tensor<3x4xf64>
  cirh.sgd %d, %x {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "two"} : tensor<4x3xf64>, tensor<4x3xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf64>
  %a = cirh.parameter "one/bias" {scope = "one", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %b = cirh.parameter "two/bias" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %c = cirh.parameter "two/scale" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3x4xf64>
  %d = cirh.parameter "two/shift" {scope = "two", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x3xf64>
  %0 = cirh.clone %x {scope = "two"} : (tensor<4x3xf64>) -> tensor<4x3xf64>
  %1 = cirh.sum %x {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf64>) -> tensor<3xf64>
  %2 = cirh.clone %1 {scope = "two"} : (tensor<3xf64>) -> tensor<3xf64>
  %3 = cirh.clone %1 {scope = "one"} : (tensor<3xf64>) -> tensor<3xf64>
  %4 = cirh.neg %x : (tensor<4x3xf64>) -> tensor<4x3xf64>
  %5 = cirh.t %4 : (tensor<4x3xf64>) -> tensor<3x4xf64>
  cirh.sgd %a, %3 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "one"} : tensor<3xf64>, tensor<3xf64>
  cirh.sgd %b, %2 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "two"} : tensor<3xf64>, tensor<3xf64>
  cirh.sgd %c, %5 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "two"} : tensor<3x4xf64>, tensor<3x4xf64>
  cirh.sgd %d, %0 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>, scope = "two"} : tensor<4x3xf64>, tensor<4x3xf64>
}
