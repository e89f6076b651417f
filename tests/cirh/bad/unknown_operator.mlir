// expect: not registered
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.frobnicate %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
}
