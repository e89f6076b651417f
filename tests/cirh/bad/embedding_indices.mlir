// expect: indices must be integers, got float32
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4xf32>
  %w = cirh.input "w" : tensor<9x3xf32>
  %0 = cirh.embedding %w, %x {padding_idx = -1 : i64} : (tensor<9x3xf32>, tensor<4xf32>) -> tensor<4x3xf32>
}
