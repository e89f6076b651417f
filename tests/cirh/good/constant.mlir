builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %w = cirh.input "w" : tensor<9x3xf32>
  %0 = cirh.constant {values = "eJxjZkAFTFCaEUoDAACoAAc="} : tensor<4xi64>
  %1 = cirh.embedding %w, %0 {padding_idx = -1 : i64} : (tensor<9x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
  cirh.output "out" %1 : tensor<4x3xf32>
}
