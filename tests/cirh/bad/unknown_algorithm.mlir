// expect: unknown learning algorithm "adam"
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %0 = cirh.sample_count : tensor<f32>
  cirh.minimize %0 {algorithm = "adam"} : tensor<f32>
}
