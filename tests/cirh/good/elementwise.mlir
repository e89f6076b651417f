builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<4x3xf32>
  %y = cirh.input "y" : tensor<4x3xf32>
  %0 = cirh.eq %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
  %1 = cirh.where %0, %x, %y : (tensor<4x3xi1>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %2 = cirh.ne %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
  %3 = cirh.lt %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
  %4 = cirh.le %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
  %5 = cirh.full {value = 0.000000e+00 : f64} : tensor<f32>
  %6 = cirh.gt %x, %5 : (tensor<4x3xf32>, tensor<f32>) -> tensor<4x3xi1>
  %7 = cirh.ge %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
  %8 = cirh.maximum %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %9 = cirh.minimum %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %10 = cirh.clamp %x {min_val = 5.000000e-01 : f64, max_val = 0x7ff0000000000000 : f64} : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %11 = cirh.abs %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %12 = cirh.sign %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %13 = cirh.reciprocal %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %14 = cirh.rsqrt %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %15 = cirh.pow %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %16 = cirh.log1p %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  cirh.output "o" %16 : tensor<4x3xf32>
  cirh.output "a" %1 : tensor<4x3xf32>
  cirh.output "b" %2 : tensor<4x3xi1>
  cirh.output "c" %3 : tensor<4x3xi1>
  cirh.output "d" %4 : tensor<4x3xi1>
  cirh.output "e" %6 : tensor<4x3xi1>
  cirh.output "f" %7 : tensor<4x3xi1>
  cirh.output "g" %8 : tensor<4x3xf32>
  cirh.output "h" %9 : tensor<4x3xf32>
  cirh.output "i" %10 : tensor<4x3xf32>
  cirh.output "j" %11 : tensor<4x3xf32>
  cirh.output "k" %12 : tensor<4x3xf32>
  cirh.output "l" %13 : tensor<4x3xf32>
  cirh.output "m" %14 : tensor<4x3xf32>
  cirh.output "n" %15 : tensor<4x3xf32>
}
