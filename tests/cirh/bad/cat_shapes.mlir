// expect: shapes may differ along axis 1 only, got [4, 3], [3, 4]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.t %x : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %1 = cirh.cat %x, %0 {dim = 1 : i64} : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x7xf32>
}
