// expect: rotary_dim must be even and in 2..6, the size of the last axis, got 8
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<2x4x6xf32>
  %0 = cirh.rotary_embedding %x {dim = 1 : i64, rotary_dim = 8 : i64, base = 1.000000e+04 : f64, is_interleaved = true, is_inverse = false} : (tensor<2x4x6xf32>) -> tensor<2x4x6xf32>
}
