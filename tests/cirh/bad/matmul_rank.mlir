// expect: both operands must have at least 2 axes, got [4, 3] and [3]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.select %x {dim = 0 : i64, index = 0 : i64} : (tensor<4x3xf32>) -> tensor<3xf32>
  %1 = cirh.matmul %x, %0 : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4xf32>
}
