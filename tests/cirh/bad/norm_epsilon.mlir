// expect: eps must be >= 0, got -1.0
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %w = cirh.input "w" : tensor<3xf32>
  %0, %1 = cirh._fused_rms_norm %x, %w {eps = -1.000000e+00 : f64} : (tensor<4x3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<4x1xf32>)
}
