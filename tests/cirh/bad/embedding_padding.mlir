// expect: padding_idx must be in -1..8, got 9
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4xi64>
  %w = cirh.input "w" : tensor<9x3xf32>
  %0 = cirh.embedding %w, %x {padding_idx = 9 : i64} : (tensor<9x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
}
