builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.view %x {shape = array<i64: 6>} : (tensor<2x3xf64>) -> tensor<6xf64>
  %1 = cirh.expand %0 {shape = array<i64: 4, 6>} : (tensor<6xf64>) -> tensor<4x6xf64>
  %2 = cirh.permute %1 {dims = array<i64: 1, 0>} : (tensor<4x6xf64>) -> tensor<6x4xf64>
  %3 = cirh.t %2 : (tensor<6x4xf64>) -> tensor<4x6xf64>
  %4 = cirh.mm %3, %2 : (tensor<4x6xf64>, tensor<6x4xf64>) -> tensor<4x4xf64>
  %5 = cirh.sum %4 {dims = array<i64: 0>, keepdim = false} : (tensor<4x4xf64>) -> tensor<4xf64>
  %6 = cirh.add %4, %5 : (tensor<4x4xf64>, tensor<4xf64>) -> tensor<4x4xf64>
  %7 = cirh.sub %6, %4 : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %8 = cirh.mul %7, %4 : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %9 = cirh.div %8, %4 : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %10 = cirh.neg %9 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %11 = cirh.exp %10 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %12 = cirh.log %11 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %13 = cirh.sqrt %12 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %14 = cirh.relu %13 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %15 = cirh.sigmoid %14 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %16 = cirh.tanh %15 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %17 = cirh.argmax %16 {dim = 1 : i64} : (tensor<4x4xf64>) -> tensor<4xi64>
  %mask = cirh.dropout_mask {scope = "dropout", rate = 1.000000e-01 : f64, stream = 3 : i64} : tensor<4x4xi1>
  %noise = cirh.uniform {scope = "dropout", stream = 4 : i64, rows = 0 : i64} : tensor<4x4xf32>
  %18 = cirh._masked_scale %16, %mask {scale = 1.250000e+00 : f64} : (tensor<4x4xf64>, tensor<4x4xi1>) -> tensor<4x4xf64>
  %19 = cirh.silu %18 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %20 = cirh.softplus %19 : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %21 = cirh.gelu %20 {approximate = "tanh"} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %22 = cirh.elu %21 {alpha = 1.000000e+00 : f64, scale = 1.000000e+00 : f64} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %23 = cirh.leaky_relu %22 {negative_slope = 1.000000e-02 : f64} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %24 = cirh.hardtanh %23 {min_val = 0.000000e+00 : f64, max_val = 6.000000e+00 : f64} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %25 = cirh.silu_backward %24, %18 : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %26 = cirh.softplus_backward %25, %18 : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %27 = cirh.gelu_backward %26, %18 {approximate = "tanh"} : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %28 = cirh.elu_backward %27, %18 {alpha = 1.000000e+00 : f64, scale = 1.000000e+00 : f64} : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %29 = cirh.leaky_relu_backward %28, %18 {negative_slope = 1.000000e-02 : f64} : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %30 = cirh.hardtanh_backward %29, %18 {min_val = 0.000000e+00 : f64, max_val = 6.000000e+00 : f64} : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %31 = cirh._to_copy %17 {dtype = "float64"} : (tensor<4xi64>) -> tensor<4xf64>
  %32 = cirh.gelu_cdf %30 {approximate = "none"} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %33 = cirh.mul %30, %32 : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %34 = cirh.gelu_slope %30, %32, %33 {approximate = "none"} : (tensor<4x4xf64>, tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %35 = cirh.softshrink %34 {lambd = 5.000000e-01 : f64} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %36 = cirh.softshrink_backward %35, %34 {lambd = 5.000000e-01 : f64} : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %37 = cirh.share %36 {parts = 3 : i64} : (tensor<4x4xf64>) -> tensor<4x4xf64>
  %38 = cirh.first_sample : tensor<f64>
  %39 = cirh.first_part %37, %38 : (tensor<4x4xf64>, tensor<f64>) -> tensor<4x4xf64>
  cirh.output "class" %17 : tensor<4xi64>
}
