// pass: mixed
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %x = cirh.input "x" : tensor<4x2xf32>
  %w = cirh.state "fc/kernel" {scope = "fc", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2x3xf32>
  %m = cirh.state "optimizer/m" {scope = "optimizer", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2x3xf32>
  %0 = cirh.mm %x, %w {scope = "fc"} : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  %1 = cirh.sum %0 {dims = array<i64: 0, 1>, keepdim = false} : (tensor<4x3xf32>) -> tensor<f32>
  cirh.loss %1 : tensor<f32>
  %2 = cirh.t %x {scope = "fc"} : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %3 = cirh.mm %2, %0 {scope = "fc"} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
  %4 = cirh.add %3, %m {scope = "optimizer"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %5 = cirh.mul %4, %4 {scope = "optimizer"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %6 = cirh.sub %w, %5 {scope = "optimizer"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  cirh.assign %m, %4 : tensor<2x3xf32>, tensor<2x3xf32>
  cirh.assign %w, %6 : tensor<2x3xf32>, tensor<2x3xf32>
}
// -----
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %x = cirh.input "x" : tensor<4x2xf32>
  %x_1 = cirh.round_half %x {mantissa_bits = 10 : i64, bias = 15 : i64, scope = "fc"} : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %w = cirh.state "fc/kernel" {scope = "fc", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2x3xf32>
  %w_1 = cirh.round_half %w {mantissa_bits = 10 : i64, bias = 15 : i64, scope = "fc"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %m = cirh.state "optimizer/m" {scope = "optimizer", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2x3xf32>
  %0 = cirh.mm %x_1, %w_1 {scope = "fc"} : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  %1 = cirh.round_half %0 {mantissa_bits = 10 : i64, bias = 15 : i64, scope = "fc"} : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %2 = cirh.sum %1 {dims = array<i64: 0, 1>, keepdim = false} : (tensor<4x3xf32>) -> tensor<f32>
  cirh.loss %2 : tensor<f32>
  %3 = cirh.t %x_1 {scope = "fc"} : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %4 = cirh.mm %3, %1 {scope = "fc"} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
  %5 = cirh.round_half %4 {mantissa_bits = 10 : i64, bias = 15 : i64, scope = "fc"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %6 = cirh.add %5, %m {scope = "optimizer"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %7 = cirh.mul %6, %6 {scope = "optimizer"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %8 = cirh.sub %w, %7 {scope = "optimizer"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  cirh.assign %m, %6 : tensor<2x3xf32>, tensor<2x3xf32>
  cirh.assign %w, %8 : tensor<2x3xf32>, tensor<2x3xf32>
}
