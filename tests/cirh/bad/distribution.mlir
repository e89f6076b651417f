// expect: distribution must be one of zeros, ones, uniform, normal, got cauchy
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %0 = cirh.parameter "a/b" {scope = "a", initializer = #cirh.initializer<"cauchy", 1.000000e+00 : f64>} : tensor<2xf32>
}
