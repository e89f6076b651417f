builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %i = cirh.input "i" : tensor<4x2xi32>
  %m = cirh.input "m" : tensor<3x3x2xf32>
  %0 = cirh.gather %x, %i {dim = 1 : i64} : (tensor<4x3xf32>, tensor<4x2xi32>) -> tensor<4x2xf32>
  %1 = cirh.select %i {dim = 1 : i64, index = 0 : i64} : (tensor<4x2xi32>) -> tensor<4xi32>
  %2 = cirh.index_select %x, %1 {dim = 1 : i64} : (tensor<4x3xf32>, tensor<4xi32>) -> tensor<4x4xf32>
  %3 = cirh.amax %x {dims = array<i64: 1>, keepdim = false} : (tensor<4x3xf32>) -> tensor<4xf32>
  %4 = cirh.valid_samples : tensor<i64>
  %5 = cirh.mask_padding %x, %4 {value = 0x7ff0000000000000 : f64, dim = 0 : i64, rows = 1 : i64} : (tensor<4x3xf32>, tensor<i64>) -> tensor<4x3xf32>
  %6 = cirh.amin %5 {dims = array<i64: 0>, keepdim = false} : (tensor<4x3xf32>) -> tensor<3xf32>
  %7 = cirh.gather_backward %0, %i {input_sizes = array<i64: 4, 3>, dim = 1 : i64} : (tensor<4x2xf32>, tensor<4x2xi32>) -> tensor<4x3xf32>
  %8 = cirh.select %i {dim = 1 : i64, index = 0 : i64} : (tensor<4x2xi32>) -> tensor<4xi32>
  %9 = cirh.index_select_backward %2, %8 {input_sizes = array<i64: 4, 3>, dim = 1 : i64} : (tensor<4x4xf32>, tensor<4xi32>) -> tensor<4x3xf32>
  %10 = cirh.argsort %x {dim = 1 : i64, descending = true} : (tensor<4x3xf32>) -> tensor<4x3xi64>
  %11 = cirh.argmax %x {dim = 0 : i64} : (tensor<4x3xf32>) -> tensor<3xi64>
  %12 = cirh.grouped_mm %x, %m, %11 : (tensor<4x3xf32>, tensor<3x3x2xf32>, tensor<3xi64>) -> tensor<4x2xf32>
  %13 = cirh.permute %x {dims = array<i64: 1, 0>} : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %14 = cirh.grouped_outer %13, %12, %11 : (tensor<3x4xf32>, tensor<4x2xf32>, tensor<3xi64>) -> tensor<3x3x2xf32>
  cirh.output "a" %3 : tensor<4xf32>
  cirh.output "b" %6 : tensor<3xf32>
  cirh.output "c" %7 : tensor<4x3xf32>
  cirh.output "d" %9 : tensor<4x3xf32>
  cirh.output "e" %10 : tensor<4x3xi64>
  cirh.output "f" %14 : tensor<3x3x2xf32>
}
