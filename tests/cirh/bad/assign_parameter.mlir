// expect: cirh.assign in bn: the target must be a state
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3x5xf64>
  %n = cirh.valid_samples : tensor<i64>
  %gamma = cirh.parameter "bn/gamma" {scope = "bn", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<3xf64>
  %beta = cirh.parameter "bn/beta" {scope = "bn", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %mean = cirh.state "bn/running_mean" {scope = "bn", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<3xf64>
  %var = cirh.state "bn/running_var" {scope = "bn", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<3xf64>
  cirh.assign %gamma, %mean {scope = "bn"} : tensor<3xf64>, tensor<3xf64>
}
