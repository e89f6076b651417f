// expect: input y: labels must be integers, got tensor<4xf32>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %0 = cirh.input "y" {classes = 3 : i64} : tensor<4xf32>
}
