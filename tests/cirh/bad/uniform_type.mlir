// expect: cirh.uniform in noise: the numbers must be float32, got tensor<4xf64>
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %0 = cirh.uniform {scope = "noise", stream = 0 : i64} : tensor<4xf64>
}
