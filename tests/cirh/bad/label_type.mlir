// expect: labels must be integers, got float32 of shape [4]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %y = cirh.input "y" : tensor<4xf32>
  %0 = cirh.label_count %y {ignore_index = -100 : i64, dtype = "float32"} : (tensor<4xf32>) -> tensor<f32>
}
