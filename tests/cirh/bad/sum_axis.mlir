// expect: dims must be axes of tensor<4x3xf32>, got [2]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.sum %x {dims = array<i64: 2>, keepdim = false} : (tensor<4x3xf32>) -> tensor<4x3xf32>
}
