// expect: the gradient must have one row per index of [4], got [5, 3]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4xi64>
  %g = cirh.input "g" : tensor<5x3xf32>
  %0 = cirh.embedding_dense_backward %g, %x {num_weights = 9 : i64, padding_idx = -1 : i64} : (tensor<5x3xf32>, tensor<4xi64>) -> tensor<9x3xf32>
}
