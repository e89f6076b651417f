// pass: mixed
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %t = cirh.input "t" : tensor<4x4xi64>
  %i = cirh.input "i" : tensor<4xi64>
  %b = cirh.state "net/table" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<9x4xf32>
  %v = cirh.state "net/first" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x4xf32>
  %w = cirh.state "net/second" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x4xf32>
  %0 = cirh._to_copy %t {dtype = "float32"} : (tensor<4x4xi64>) -> tensor<4x4xf32>
  %1 = cirh.mm %0, %v {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = cirh.relu %1 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = cirh.index_select %b, %i {dim = 0 : i64} : (tensor<9x4xf32>, tensor<4xi64>) -> tensor<4x4xf32>
  %4 = cirh.mm %2, %w {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = cirh.sin %0 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = cirh.add_product %4, %5, %w {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = cirh.mul %6, %3 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  cirh.output "sum" %7 : tensor<4x4xf32>
}
// -----
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train", cirh.storage = {name = "float16", mantissa_bits = 10 : i64, bias = 15 : i64}} {
  %t = cirh.input "t" : tensor<4x4xi64>
  %i = cirh.input "i" : tensor<4xi64>
  %b = cirh.state "net/table" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<9x4xf32>
  %v = cirh.state "net/first" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x4xf32>
  %w = cirh.state "net/second" {scope = "net", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4x4xf32>
  %0 = cirh._to_copy %t {dtype = "float32"} : (tensor<4x4xi64>) -> tensor<4x4xf32>
  %1 = cirh.round_half %0 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = cirh.mm %1, %v {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = cirh.relu %2 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = cirh.round_half %3 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = cirh.index_select %b, %i {dim = 0 : i64} : (tensor<9x4xf32>, tensor<4xi64>) -> tensor<4x4xf32>
  %6 = cirh.mm %4, %w {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = cirh.round_half %6 {mantissa_bits = 10 : i64, bias = 15 : i64, scope = "net"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %8 = cirh.sin %0 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %9 = cirh.round_half %8 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %10 = cirh.add_product %7, %9, %w {scope = "net"} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %11 = cirh.mul %10, %5 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %12 = cirh.round_half %11 {mantissa_bits = 10 : i64, bias = 15 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  cirh.output "sum" %12 : tensor<4x4xf32>
}
