// expect: momentum must be in [0, 1), got 1.0
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %0 = cirh.sample_count : tensor<f32>
  cirh.minimize %0 {algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 1.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<f32>
}
