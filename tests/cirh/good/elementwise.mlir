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
  %17 = cirh.sin %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %18 = cirh.cos %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %19 = cirh.tan %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %20 = cirh.asin %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %21 = cirh.acos %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %22 = cirh.atan %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %23 = cirh.sinh %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %24 = cirh.cosh %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %25 = cirh.asinh %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %26 = cirh.acosh %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %27 = cirh.atanh %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %28 = cirh.expm1 %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %29 = cirh.floor %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %30 = cirh.ceil %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %31 = cirh.trunc %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %32 = cirh.round %x : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %33 = cirh.atan2 %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %34 = cirh.floor_divide %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %35 = cirh.remainder %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %36 = cirh.fmod %x, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
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
  cirh.output "v17" %17 : tensor<4x3xf32>
  cirh.output "v18" %18 : tensor<4x3xf32>
  cirh.output "v19" %19 : tensor<4x3xf32>
  cirh.output "v20" %20 : tensor<4x3xf32>
  cirh.output "v21" %21 : tensor<4x3xf32>
  cirh.output "v22" %22 : tensor<4x3xf32>
  cirh.output "v23" %23 : tensor<4x3xf32>
  cirh.output "v24" %24 : tensor<4x3xf32>
  cirh.output "v25" %25 : tensor<4x3xf32>
  cirh.output "v26" %26 : tensor<4x3xf32>
  cirh.output "v27" %27 : tensor<4x3xf32>
  cirh.output "v28" %28 : tensor<4x3xf32>
  cirh.output "v29" %29 : tensor<4x3xf32>
  cirh.output "v30" %30 : tensor<4x3xf32>
  cirh.output "v31" %31 : tensor<4x3xf32>
  cirh.output "v32" %32 : tensor<4x3xf32>
  cirh.output "v33" %33 : tensor<4x3xf32>
  cirh.output "v34" %34 : tensor<4x3xf32>
  cirh.output "v35" %35 : tensor<4x3xf32>
  cirh.output "v36" %36 : tensor<4x3xf32>
}
