// expect: cirh.mm in fc: cannot multiply [4, 3] by [4, 3]: inner sizes 3 and 4 differ
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.mm %x, %x {scope = "fc"} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
}
