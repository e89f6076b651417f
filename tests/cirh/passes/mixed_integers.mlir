// pass: mixed
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %t = cirh.input "t" : tensor<4x1xi64>
  %x = cirh.input "x" : tensor<4x4xf32>
  %f = cirh.state "net/frequencies" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x2xf32>
  %w = cirh.parameter "net/kernel" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x4xf32>
  %0 = cirh._to_copy %t {dtype = "float32"} : (tensor<4x1xi64>) -> tensor<4x1xf32>
  %1 = cirh.expand %0 {shape = array<i64: 4, 2>} : (tensor<4x1xf32>) -> tensor<4x2xf32>
  %2 = cirh.mul %1, %f : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  %3 = cirh.sin %2 : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %4 = cirh.cos %2 : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %5 = cirh.cat %3, %4 {dim = 1 : i64} : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x4xf32>
  %6 = cirh.mm %5, %w {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = cirh.mul %x, %5 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %8 = cirh.t %5 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %9 = cirh.mm %8, %7 {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %10 = cirh.add %6, %9 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  cirh.output "sum" %10 : tensor<4x4xf32>
}
// -----
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %t = cirh.input "t" : tensor<4x1xi64>
  %x = cirh.input "x" : tensor<4x4xf32>
  %f = cirh.state "net/frequencies" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x2xf32>
  %w = cirh.parameter "net/kernel" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x4xf32>
  %0 = cirh._to_copy %t {dtype = "float32"} : (tensor<4x1xi64>) -> tensor<4x1xf32>
  %1 = cirh.expand %0 {shape = array<i64: 4, 2>} : (tensor<4x1xf32>) -> tensor<4x2xf32>
  %2 = cirh.mul %1, %f : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  %3 = cirh.sin %2 : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %4 = cirh.cos %2 : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %5 = cirh.cat %3, %4 {dim = 1 : i64} : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x4xf32>
  %6 = cirh.round_half %5 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = cirh.mm %6, %w {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %8 = cirh.mul %x, %5 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %9 = cirh.round_half %8 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %10 = cirh.t %6 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %11 = cirh.mm %10, %9 {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %12 = cirh.add %7, %11 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %13 = cirh.round_half %12 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  cirh.output "sum" %13 : tensor<4x4xf32>
}
