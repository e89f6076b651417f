// expect: operands must have the same type, got tensor<4x3xf32> and tensor<3xf32>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %y = cirh.input "y" : tensor<3xf32>
  %0 = cirh.tanh_backward %x, %y : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
}
