// expect: [4, 3] cannot be viewed as [5, 2]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.view %x {shape = array<i64: 5, 2>} : (tensor<4x3xf32>) -> tensor<5x2xf32>
}
