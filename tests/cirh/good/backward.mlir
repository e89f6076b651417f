builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %labels = cirh.input "labels" : tensor<4xi64>
  %w = cirh.parameter "fc/kernel" {scope = "fc", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>} : tensor<4x3xf32>
  %one = cirh.full {value = 1.000000e+00 : f64} : tensor<f32>
  %0 = cirh.nll_loss_backward %one, %w, %labels {ignore_index = -100 : i64} : (tensor<f32>, tensor<4x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
  %1 = cirh.log_softmax_backward_data %0, %w {dim = 1 : i64} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %2 = cirh.threshold_backward %1, %w {threshold = 0.000000e+00 : f64} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %3 = cirh.sigmoid_backward %2, %w : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %4 = cirh.tanh_backward %3, %w : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  cirh.apply_gradient %w, %4 {scope = "fc", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.sgd %w, %4 {scope = "fc", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.adam %w, %4 {scope = "fc", algorithm = #cirh.adam_algorithm<#cirh.schedule<"linear", {end_learning_rate = 0.000000e+00 : f64, initial_learning_rate = 1.000000e-03 : f64, steps = 90 : i64, warmup_steps = 10 : i64}>, 9.000000e-01 : f64, 9.990000e-01 : f64, 1.000000e-08 : f64, true, false, true, 1.000000e-02 : f64, ["bias"], false, false, false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.lamb %w, %4 {scope = "fc", algorithm = #cirh.lamb_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 9.000000e-01 : f64, 9.990000e-01 : f64, 1.000000e-06 : f64, true, 1.000000e-02 : f64, [], false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.adagrad %w, %4 {scope = "fc", algorithm = #cirh.adagrad_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, 1.000000e-01 : f64, 1.000000e-10 : f64, 1.000000e-02 : f64, [], false, false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.rmsprop %w, %4 {scope = "fc", algorithm = #cirh.rmsprop_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 9.900000e-01 : f64, 1.000000e-08 : f64, 9.000000e-01 : f64, true, 1.000000e-02 : f64, [], false, false, 0.000000e+00 : f64, false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.adamax %w, %4 {scope = "fc", algorithm = #cirh.adamax_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, #cirh.step_number<#builtin.int<2>>, 9.990000e-01 : f64, 1.000000e-08 : f64, 1.000000e-02 : f64, [], true>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.nadam %w, %4 {scope = "fc", algorithm = #cirh.nadam_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 9.000000e-01 : f64, 9.990000e-01 : f64, 1.000000e-08 : f64, 4.000000e-03 : f64, true, 1.000000e-02 : f64, [], false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.radam %w, %4 {scope = "fc", algorithm = #cirh.radam_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 9.000000e-01 : f64, 9.990000e-01 : f64, 1.000000e-08 : f64, true, 1.000000e-02 : f64, [], false>} : tensor<4x3xf32>, tensor<4x3xf32>
  cirh.adadelta %w, %4 {scope = "fc", algorithm = #cirh.adadelta_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 9.000000e-01 : f64, 1.000000e-06 : f64, 1.000000e-02 : f64, [], false>} : tensor<4x3xf32>, tensor<4x3xf32>
}
