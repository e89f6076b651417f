// expect: x must be floating point, got tensor<2x4x6xi32>
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x4x6xi32>
  %0 = cirh.rotary_embedding %x {dim = 1 : i64, rotary_dim = 4 : i64, base = 1.000000e+04 : f64, is_interleaved = true, is_inverse = false} : (tensor<2x4x6xi32>) -> tensor<2x4x6xi32>
}
