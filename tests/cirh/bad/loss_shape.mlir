// expect: the loss must be a scalar, got shape [4, 3]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  cirh.loss %x : tensor<4x3xf32>
}
