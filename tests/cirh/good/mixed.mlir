builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %x = cirh.input "features" : tensor<4x3xf32>
  %0 = cirh.round_half %x {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %1 = cirh.loss_scale : tensor<f32>
  %2 = cirh.half_words %0 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x3xf32>) -> tensor<4x3xui16>
  %3 = cirh.widen_half %2 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x3xui16>) -> tensor<4x3xf32>
  %4 = cirh.narrow_half %x {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x3xf32>) -> tensor<4x3xui16>
  cirh.output "widened" %3 : tensor<4x3xf32>
  cirh.output "features" %0 : tensor<4x3xf32>
  cirh.output "words" %4 : tensor<4x3xui16>
  cirh.output "scale" %1 : tensor<f32>
}
