// expect: dim must be in 0..1, got 2
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.log_softmax %x {dim = 2 : i64} : (tensor<4x3xf32>) -> tensor<4x3xf32>
}
