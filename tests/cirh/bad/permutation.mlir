// expect: dims must permute 0..1, got [0, 0]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.permute %x {dims = array<i64: 0, 0>} : (tensor<4x3xf32>) -> tensor<4x4xf32>
}
