// expect: parameter a/b must have a scope, its layer
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %0 = cirh.parameter "a/b" {initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2xf32>
}
