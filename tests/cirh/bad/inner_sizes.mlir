// expect: cirh.mm in fc: the last axis of [4, 3] must equal the first of [4, 3], 3 is not 4
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %0 = cirh.mm %x, %x {scope = "fc"} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
}
