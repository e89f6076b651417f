// expect: cirh._masked_scale in the model: the mask must be bool of shape [4], got tensor<3xi1>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4xf32>
  %mask = cirh.input "mask" : tensor<3xi1>
  %0 = "cirh._masked_scale"(%x, %mask) <{scale = 2.0 : f64}> : (tensor<4xf32>, tensor<3xi1>) -> tensor<4xf32>
}
