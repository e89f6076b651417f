builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x4x9x8xf32>
  %w = cirh.parameter "conv/kernel" {scope = "conv", initializer = #cirh.initializer<"uniform", 1.000000e-01 : f64>} : tensor<6x2x3x2xf32>
  %b = cirh.parameter "conv/bias" {scope = "conv", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<6xf32>
  %y = cirh.convolution %x, %w, %b {stride = array<i64: 2, 1>, padding = array<i64: 1, 0>, dilation = array<i64: 1, 2>, groups = 2 : i64} : (tensor<2x4x9x8xf32>, tensor<6x2x3x2xf32>, tensor<6xf32>) -> tensor<2x6x5x6xf32>
  %dx = cirh.convolution_backward_input %y, %w {input_size = array<i64: 2, 4, 9, 8>, stride = array<i64: 2, 1>, padding = array<i64: 1, 0>, dilation = array<i64: 1, 2>, groups = 2 : i64} : (tensor<2x6x5x6xf32>, tensor<6x2x3x2xf32>) -> tensor<2x4x9x8xf32>
  %dw = cirh.convolution_backward_weight %y, %x {weight_size = array<i64: 6, 2, 3, 2>, stride = array<i64: 2, 1>, padding = array<i64: 1, 0>, dilation = array<i64: 1, 2>, groups = 2 : i64} : (tensor<2x6x5x6xf32>, tensor<2x4x9x8xf32>) -> tensor<6x2x3x2xf32>
  %max, %offsets = cirh.max_pool2d_with_offsets %y {kernel_size = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>} : (tensor<2x6x5x6xf32>) -> (tensor<2x6x2x4xf32>, tensor<2x6x2x4xi32>)
  %0 = cirh.max_pool2d_with_offsets_backward %max, %offsets {input_size = array<i64: 2, 6, 5, 6>, kernel_size = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 1>, dilation = array<i64: 1, 1>} : (tensor<2x6x2x4xf32>, tensor<2x6x2x4xi32>) -> tensor<2x6x5x6xf32>
  %1 = cirh.avg_pool2d %0 {kernel_size = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 1>, count_include_pad = true} : (tensor<2x6x5x6xf32>) -> tensor<2x6x2x4xf32>
  %2 = cirh.avg_pool2d_backward %1 {input_size = array<i64: 2, 6, 5, 6>, kernel_size = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 1>, count_include_pad = true} : (tensor<2x6x2x4xf32>) -> tensor<2x6x5x6xf32>
}
