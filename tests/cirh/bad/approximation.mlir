// expect: cirh.gelu in the model: approximate must be none or tanh, got "erf"
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4xf32>
  %0 = cirh.gelu %x {approximate = "erf"} : (tensor<4xf32>) -> tensor<4xf32>
}
