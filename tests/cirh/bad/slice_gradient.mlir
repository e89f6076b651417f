// expect: the gradient must be tensor<4x5xf32>, got tensor<4x3xf32>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.slice_backward %x {input_sizes = array<i64: 4, 8>, dim = 1 : i64, start = 0 : i64, end = 5 : i64, step = 1 : i64} : (tensor<4x3xf32>) -> tensor<4x8xf32>
}
