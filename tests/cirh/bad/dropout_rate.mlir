// expect: cirh.dropout_mask in drop: rate must be in [0, 1), got 1.0
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %0 = cirh.dropout_mask {scope = "drop", rate = 1.000000e+00 : f64, stream = 0 : i64} : tensor<4xi1>
}
