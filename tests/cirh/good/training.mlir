builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "features" : tensor<4x3xf32>
  %labels = cirh.input "labels" : tensor<4xi32>
  %kernel = cirh.parameter "fc/kernel" {scope = "fc", initializer = #cirh.initializer<"uniform", 5.000000e-01 : f64>} : tensor<3x2xf32>
  %bias = cirh.parameter "fc/bias" {scope = "fc", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2xf32>
  %logits = cirh.addmm %bias, %x, %kernel {scope = "fc"} : (tensor<2xf32>, tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  %0 = cirh.log_softmax %logits {dim = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %samples = cirh.valid_samples : tensor<i64>
  %counted = cirh.mask_padding %labels, %samples {dim = 0 : i64, rows = 1 : i64, value = -1.000000e+02 : f64} : (tensor<4xi32>, tensor<i64>) -> tensor<4xi32>
  %1 = cirh.label_count %counted {ignore_index = -100 : i64, dtype = "float32"} : (tensor<4xi32>) -> tensor<f32>
  %2 = cirh.nll_loss_forward %0, %counted {ignore_index = -100 : i64} : (tensor<4x2xf32>, tensor<4xi32>) -> tensor<f32>
  %cross_entropy = cirh.div %2, %1 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %3 = cirh.sample_count : tensor<f32>
  %loss = cirh.div %cross_entropy, %3 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  cirh.loss %loss : tensor<f32>
  cirh.output "logits" %logits : tensor<4x2xf32>
  cirh.minimize %loss {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 9.000000e-01 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<f32>
}
