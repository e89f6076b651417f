// expect: cirh.max_pool2d_with_offsets_backward in the model: offsets must be integers of shape [2, 6, 2, 3], got int32 of [2, 6, 2, 2]
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %g = cirh.input "g" : tensor<2x6x2x3xf32>
  %o = cirh.input "o" : tensor<2x6x2x2xi32>
  %0 = cirh.max_pool2d_with_offsets_backward %g, %o {input_size = array<i64: 2, 6, 4, 6>, kernel_size = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>} : (tensor<2x6x2x3xf32>, tensor<2x6x2x2xi32>) -> tensor<2x6x4x6xf32>
}
