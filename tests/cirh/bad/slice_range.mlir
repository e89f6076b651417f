// expect: a slice must have 0 <= start <= end <= 3 and step >= 1, got 2..4 step 1
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.slice %x {dim = 1 : i64, start = 2 : i64, end = 4 : i64, step = 1 : i64} : (tensor<4x3xf32>) -> tensor<4x2xf32>
}
