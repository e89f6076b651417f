// expect: index must be in 0..3, got 4
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.select %x {dim = 0 : i64, index = 4 : i64} : (tensor<4x3xf32>) -> tensor<3xf32>
}
