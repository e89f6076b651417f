// pass: canonical
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3x5xf64>
  %n = cirh.valid_samples : tensor<i64>
  %gamma = cirh.parameter "bn/gamma" {scope = "bn", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<3xf64>
  %beta = cirh.parameter "bn/beta" {scope = "bn", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %mean = cirh.state "bn/running_mean" {scope = "bn", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %var = cirh.state "bn/running_var" {scope = "bn", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<3xf64>
  %y, %m, %r, %next_mean, %next_var = cirh.native_batch_norm %x, %gamma, %beta, %mean, %var, %n {scope = "bn", rows = 1 : i64, momentum = 1.000000e-01 : f64, eps = 1.000000e-05 : f64} : (tensor<4x3x5xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<i64>) -> (tensor<4x3x5xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>)
  cirh.assign %mean, %next_mean {scope = "bn"} : tensor<3xf64>, tensor<3xf64>
  cirh.assign %var, %next_var {scope = "bn"} : tensor<3xf64>, tensor<3xf64>
  cirh.output "out" %y : tensor<4x3x5xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3x5xf64>
  %n = cirh.valid_samples : tensor<i64>
  %gamma = cirh.parameter "bn/gamma" {scope = "bn", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<3xf64>
  %beta = cirh.parameter "bn/beta" {scope = "bn", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %mean = cirh.state "bn/running_mean" {scope = "bn", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %var = cirh.state "bn/running_var" {scope = "bn", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<3xf64>
  %y, %m, %r, %next_mean, %next_var = cirh.native_batch_norm %x, %gamma, %beta, %mean, %var, %n {scope = "bn", rows = 1 : i64, momentum = 1.000000e-01 : f64, eps = 1.000000e-05 : f64} : (tensor<4x3x5xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<i64>) -> (tensor<4x3x5xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>)
  cirh.assign %mean, %next_mean {scope = "bn"} : tensor<3xf64>, tensor<3xf64>
  cirh.assign %var, %next_var {scope = "bn"} : tensor<3xf64>, tensor<3xf64>
  cirh.output "out" %y : tensor<4x3x5xf64>
}
