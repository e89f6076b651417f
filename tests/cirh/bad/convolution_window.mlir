// expect: cirh.convolution in the model: a window of 5 pixels does not fit 3 pixels with padding 0
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x4x9x3xf32>
  %w = cirh.input "w" : tensor<6x4x3x3xf32>
  %y = cirh.convolution %x, %w {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 2>, groups = 1 : i64} : (tensor<2x4x9x3xf32>, tensor<6x4x3x3xf32>) -> tensor<2x6x7x1xf32>
}
