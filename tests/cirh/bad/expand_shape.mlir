// expect: [4, 3] does not broadcast to [3, 4]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.expand %x {shape = array<i64: 3, 4>} : (tensor<4x3xf32>) -> tensor<3x4xf32>
}
