// expect: cirh.convolution in the model: the weight must be [outputs, 4 / groups, rows, columns] with outputs divisible by groups, got [3, 2, 1, 1] and 2 groups
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x4x2x3xf32>
  %w = cirh.input "w" : tensor<3x2x1x1xf32>
  %y = cirh.convolution %x, %w {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 2 : i64} : (tensor<2x4x2x3xf32>, tensor<3x2x1x1xf32>) -> tensor<2x3x2x3xf32>
}
