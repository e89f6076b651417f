// expect: saved statistics must be tensor<4x1xf32>, got tensor<4x3xf32>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %w = cirh.input "w" : tensor<3xf32>
  %0, %1 = cirh._fused_rms_norm_backward %x, %x, %x, %w : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>)
}
