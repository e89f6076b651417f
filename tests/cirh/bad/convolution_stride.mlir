// expect: cirh.convolution in the model: stride must be a pair (rows, columns), got [1]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x4x2x3xf32>
  %w = cirh.input "w" : tensor<3x4x1x1xf32>
  %y = cirh.convolution %x, %w {stride = array<i64: 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x4x2x3xf32>, tensor<3x4x1x1xf32>) -> tensor<2x3x2x3xf32>
}
