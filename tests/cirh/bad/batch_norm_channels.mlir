// expect: x must be [samples, channels, positions] and the weight [channels], got [4, 3, 5] and [5]
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3x5xf64>
  %n = cirh.valid_samples : tensor<i64>
  %w = cirh.input "w" : tensor<5xf64>
  %y, %m, %r, %a, %b = cirh.native_batch_norm %x, %w, %w, %w, %w, %n {rows = 1 : i64, momentum = 1.000000e-01 : f64, eps = 1.000000e-05 : f64} : (tensor<4x3x5xf64>, tensor<5xf64>, tensor<5xf64>, tensor<5xf64>, tensor<5xf64>, tensor<i64>) -> (tensor<4x3x5xf64>, tensor<5xf64>, tensor<5xf64>, tensor<5xf64>, tensor<5xf64>)
}
