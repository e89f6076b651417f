// expect: rows must divide the axis size 4, got 3
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x2xf32>
  %samples = cirh.valid_samples : tensor<i64>
  %0 = cirh.mask_padding %x, %samples {dim = 0 : i64, rows = 3 : i64, value = 0.000000e+00 : f64} : (tensor<4x2xf32>, tensor<i64>) -> tensor<4x2xf32>
}
