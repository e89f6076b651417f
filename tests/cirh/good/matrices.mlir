builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<3x3xf64>
  %0, %1 = cirh.cholesky %x : (tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<i32>)
  %2 = cirh.solve_triangular %0, %x {unitriangular = false, upper = false} : (tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64>
  %3, %4, %5 = cirh.lu_factor %2 : (tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<3xi32>, tensor<i32>)
  %6 = cirh.lu_solve %3, %4, %x {transposed = true} : (tensor<3x3xf64>, tensor<3xi32>, tensor<3x3xf64>) -> tensor<3x3xf64>
  %7, %8 = cirh.inverse %6 : (tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<i32>)
  %9, %10 = cirh.qr %7 {complete = false} : (tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<3x3xf64>)
  %11, %12 = cirh.eigh %10 {upper = false} : (tensor<3x3xf64>) -> (tensor<3xf64>, tensor<3x3xf64>)
  %13, %14, %15 = cirh.svd %12 {complete = true} : (tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<3xf64>, tensor<3x3xf64>)
  %16 = cirh.matrix_exp %13 : (tensor<3x3xf64>) -> tensor<3x3xf64>
  %17 = cirh.householder_product %16, %14 : (tensor<3x3xf64>, tensor<3xf64>) -> tensor<3x3xf64>
  %18, %19 = cirh.fft_r2c %17 {dims = array<i64: 0, 1>, onesided = false, scale = 1.000000e+00 : f64} : (tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<3x3xf64>)
  %20, %21 = cirh.fft_c2c %18, %19 {dims = array<i64: 1>, inverse = true, scale = 1.000000e+00 : f64} : (tensor<3x3xf64>, tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<3x3xf64>)
  %22 = cirh.fft_c2r %20, %21 {dims = array<i64: 1>, scale = 5.000000e-01 : f64, size = 4 : i64} : (tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x4xf64>
  cirh.output "x" %22 : tensor<3x4xf64>
}
