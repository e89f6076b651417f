// pass: cutting
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<3x4xf64>
  %labels = cirh.input "labels" : tensor<3xi32>
  %in_kernel = cirh.parameter "in/kernel" {scope = "in", initializer = #cirh.initializer<"uniform", 0.8660254037844386 : f64>} : tensor<4x4xf64>
  %in_bias = cirh.parameter "in/bias" {scope = "in", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4xf64>
  %0 = cirh.mm %x, %in_kernel {scope = "in"} : (tensor<3x4xf64>, tensor<4x4xf64>) -> tensor<3x4xf64>
  %1 = cirh.add %0, %in_bias {scope = "in"} : (tensor<3x4xf64>, tensor<4xf64>) -> tensor<3x4xf64>
  %up_kernel = cirh.parameter "up/kernel" {scope = "up", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>} : tensor<4x8xf64>
  %up_bias = cirh.parameter "up/bias" {scope = "up", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<8xf64>
  %2 = cirh.mm %1, %up_kernel {scope = "up"} : (tensor<3x4xf64>, tensor<4x8xf64>) -> tensor<3x8xf64>
  %3 = cirh.add %2, %up_bias {scope = "up"} : (tensor<3x8xf64>, tensor<8xf64>) -> tensor<3x8xf64>
  %4 = cirh.valid_samples : tensor<i64>
  %5 = cirh.mask_padding %labels, %4 {value = -1.000000e+02 : f64, dim = 0 : i64, rows = 1 : i64} : (tensor<3xi32>, tensor<i64>) -> tensor<3xi32>
  %6 = cirh.label_count %5 {ignore_index = -100 : i64, dtype = "float64"} : (tensor<3xi32>) -> tensor<f64>
  %7 = cirh.log_softmax %3 {dim = 1 : i64} : (tensor<3x8xf64>) -> tensor<3x8xf64>
  %8 = cirh.nll_loss_forward %7, %5 {ignore_index = -100 : i64} : (tensor<3x8xf64>, tensor<3xi32>) -> tensor<f64>
  %9 = cirh.div %8, %6 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  cirh.loss %9 : tensor<f64>
  %10 = cirh.full {value = 1.000000e+00 : f64} : tensor<f64>
  %11 = cirh.div %10, %6 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %12 = cirh.nll_loss_backward %11, %7, %5 {ignore_index = -100 : i64} : (tensor<f64>, tensor<3x8xf64>, tensor<3xi32>) -> tensor<3x8xf64>
  %13 = cirh.log_softmax_backward_data %12, %7 {dim = 1 : i64} : (tensor<3x8xf64>, tensor<3x8xf64>) -> tensor<3x8xf64>
  %up_bias_grad = cirh.sum %13 {scope = "up", dims = array<i64: 0>, keepdim = false} : (tensor<3x8xf64>) -> tensor<8xf64>
  %14 = cirh.t %up_kernel {scope = "up"} : (tensor<4x8xf64>) -> tensor<8x4xf64>
  %15 = cirh.mm %13, %14 {scope = "up"} : (tensor<3x8xf64>, tensor<8x4xf64>) -> tensor<3x4xf64>
  %16 = cirh.t %1 {scope = "up"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %up_kernel_grad = cirh.mm %16, %13 {scope = "up"} : (tensor<4x3xf64>, tensor<3x8xf64>) -> tensor<4x8xf64>
  %in_bias_grad = cirh.sum %15 {scope = "in", dims = array<i64: 0>, keepdim = false} : (tensor<3x4xf64>) -> tensor<4xf64>
  %17 = cirh.t %x {scope = "in"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %in_kernel_grad = cirh.mm %17, %15 {scope = "in"} : (tensor<4x3xf64>, tensor<3x4xf64>) -> tensor<4x4xf64>
  cirh.sgd %in_kernel, %in_kernel_grad {scope = "in", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<4x4xf64>, tensor<4x4xf64>
  cirh.sgd %in_bias, %in_bias_grad {scope = "in", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<4xf64>, tensor<4xf64>
  cirh.sgd %up_kernel, %up_kernel_grad {scope = "up", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<4x8xf64>, tensor<4x8xf64>
  cirh.sgd %up_bias, %up_bias_grad {scope = "up", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<8xf64>, tensor<8xf64>
}
// -----
builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %x = cirh.input "x" : tensor<3x4xf64>
  %labels = cirh.input "labels" : tensor<3xi32>
  %0 = cirh.parameter "in/kernel[0:2]" {scope = "in/kernel[0:2]", initializer = #cirh.initializer<"uniform", 0.8660254037844386 : f64>, part = #cirh.part<"in/kernel", 4 : i64, 0 : i64>} : tensor<2x4xf64>
  %1 = cirh.parameter "in/kernel[2:4]" {scope = "in/kernel[2:4]", initializer = #cirh.initializer<"uniform", 0.8660254037844386 : f64>, part = #cirh.part<"in/kernel", 4 : i64, 2 : i64>} : tensor<2x4xf64>
  %in_bias = cirh.parameter "in/bias" {scope = "in", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<4xf64>
  %2 = cirh.slice %x {scope = "in/kernel[0:2]", dim = 1 : i64, start = 0 : i64, end = 2 : i64, step = 1 : i64} : (tensor<3x4xf64>) -> tensor<3x2xf64>
  %3 = cirh.mm %2, %0 {scope = "in/kernel[0:2]"} : (tensor<3x2xf64>, tensor<2x4xf64>) -> tensor<3x4xf64>
  %4 = cirh.slice %x {scope = "in/kernel[2:4]", dim = 1 : i64, start = 2 : i64, end = 4 : i64, step = 1 : i64} : (tensor<3x4xf64>) -> tensor<3x2xf64>
  %5 = cirh.add_product %3, %4, %1 {scope = "in/kernel[2:4]"} : (tensor<3x4xf64>, tensor<3x2xf64>, tensor<2x4xf64>) -> tensor<3x4xf64>
  %6 = cirh.add %5, %in_bias {scope = "in"} : (tensor<3x4xf64>, tensor<4xf64>) -> tensor<3x4xf64>
  %7 = cirh.parameter "up/kernel[0:1]" {scope = "up/kernel[0:1]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 4 : i64, 0 : i64>} : tensor<1x8xf64>
  %8 = cirh.parameter "up/kernel[1:2]" {scope = "up/kernel[1:2]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 4 : i64, 1 : i64>} : tensor<1x8xf64>
  %9 = cirh.parameter "up/kernel[2:3]" {scope = "up/kernel[2:3]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 4 : i64, 2 : i64>} : tensor<1x8xf64>
  %10 = cirh.parameter "up/kernel[3:4]" {scope = "up/kernel[3:4]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 4 : i64, 3 : i64>} : tensor<1x8xf64>
  %up_bias = cirh.parameter "up/bias" {scope = "up", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<8xf64>
  %11 = cirh.slice %6 {scope = "up/kernel[0:1]", dim = 1 : i64, start = 0 : i64, end = 1 : i64, step = 1 : i64} : (tensor<3x4xf64>) -> tensor<3x1xf64>
  %12 = cirh.mm %11, %7 {scope = "up/kernel[0:1]"} : (tensor<3x1xf64>, tensor<1x8xf64>) -> tensor<3x8xf64>
  %13 = cirh.slice %6 {scope = "up/kernel[1:2]", dim = 1 : i64, start = 1 : i64, end = 2 : i64, step = 1 : i64} : (tensor<3x4xf64>) -> tensor<3x1xf64>
  %14 = cirh.add_product %12, %13, %8 {scope = "up/kernel[1:2]"} : (tensor<3x8xf64>, tensor<3x1xf64>, tensor<1x8xf64>) -> tensor<3x8xf64>
  %15 = cirh.slice %6 {scope = "up/kernel[2:3]", dim = 1 : i64, start = 2 : i64, end = 3 : i64, step = 1 : i64} : (tensor<3x4xf64>) -> tensor<3x1xf64>
  %16 = cirh.add_product %14, %15, %9 {scope = "up/kernel[2:3]"} : (tensor<3x8xf64>, tensor<3x1xf64>, tensor<1x8xf64>) -> tensor<3x8xf64>
  %17 = cirh.slice %6 {scope = "up/kernel[3:4]", dim = 1 : i64, start = 3 : i64, end = 4 : i64, step = 1 : i64} : (tensor<3x4xf64>) -> tensor<3x1xf64>
  %18 = cirh.add_product %16, %17, %10 {scope = "up/kernel[3:4]"} : (tensor<3x8xf64>, tensor<3x1xf64>, tensor<1x8xf64>) -> tensor<3x8xf64>
  %19 = cirh.add %18, %up_bias {scope = "up"} : (tensor<3x8xf64>, tensor<8xf64>) -> tensor<3x8xf64>
  %20 = cirh.valid_samples : tensor<i64>
  %21 = cirh.mask_padding %labels, %20 {value = -1.000000e+02 : f64, dim = 0 : i64, rows = 1 : i64} : (tensor<3xi32>, tensor<i64>) -> tensor<3xi32>
  %22 = cirh.label_count %21 {ignore_index = -100 : i64, dtype = "float64"} : (tensor<3xi32>) -> tensor<f64>
  %23 = cirh.log_softmax %19 {dim = 1 : i64} : (tensor<3x8xf64>) -> tensor<3x8xf64>
  %24 = cirh.nll_loss_forward %23, %21 {ignore_index = -100 : i64} : (tensor<3x8xf64>, tensor<3xi32>) -> tensor<f64>
  %25 = cirh.div %24, %22 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  cirh.loss %25 : tensor<f64>
  %26 = cirh.full {value = 1.000000e+00 : f64} : tensor<f64>
  %27 = cirh.div %26, %22 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %28 = cirh.nll_loss_backward %27, %23, %21 {ignore_index = -100 : i64} : (tensor<f64>, tensor<3x8xf64>, tensor<3xi32>) -> tensor<3x8xf64>
  %29 = cirh.log_softmax_backward_data %28, %23 {dim = 1 : i64} : (tensor<3x8xf64>, tensor<3x8xf64>) -> tensor<3x8xf64>
  %up_bias_grad = cirh.sum %29 {scope = "up", dims = array<i64: 0>, keepdim = false} : (tensor<3x8xf64>) -> tensor<8xf64>
  %30 = cirh.t %10 {scope = "up/kernel[3:4]"} : (tensor<1x8xf64>) -> tensor<8x1xf64>
  %31 = cirh.mm %29, %30 {scope = "up/kernel[3:4]"} : (tensor<3x8xf64>, tensor<8x1xf64>) -> tensor<3x1xf64>
  %32 = cirh.t %6 {scope = "up/kernel[3:4]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %33 = cirh.slice %32 {scope = "up/kernel[3:4]", dim = 0 : i64, start = 3 : i64, end = 4 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<1x3xf64>
  %34 = cirh.mm %33, %29 {scope = "up/kernel[3:4]"} : (tensor<1x3xf64>, tensor<3x8xf64>) -> tensor<1x8xf64>
  %35 = cirh.t %9 {scope = "up/kernel[2:3]"} : (tensor<1x8xf64>) -> tensor<8x1xf64>
  %36 = cirh.mm %29, %35 {scope = "up/kernel[2:3]"} : (tensor<3x8xf64>, tensor<8x1xf64>) -> tensor<3x1xf64>
  %37 = cirh.t %6 {scope = "up/kernel[2:3]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %38 = cirh.slice %37 {scope = "up/kernel[2:3]", dim = 0 : i64, start = 2 : i64, end = 3 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<1x3xf64>
  %39 = cirh.mm %38, %29 {scope = "up/kernel[2:3]"} : (tensor<1x3xf64>, tensor<3x8xf64>) -> tensor<1x8xf64>
  %40 = cirh.t %8 {scope = "up/kernel[1:2]"} : (tensor<1x8xf64>) -> tensor<8x1xf64>
  %41 = cirh.mm %29, %40 {scope = "up/kernel[1:2]"} : (tensor<3x8xf64>, tensor<8x1xf64>) -> tensor<3x1xf64>
  %42 = cirh.t %6 {scope = "up/kernel[1:2]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %43 = cirh.slice %42 {scope = "up/kernel[1:2]", dim = 0 : i64, start = 1 : i64, end = 2 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<1x3xf64>
  %44 = cirh.mm %43, %29 {scope = "up/kernel[1:2]"} : (tensor<1x3xf64>, tensor<3x8xf64>) -> tensor<1x8xf64>
  %45 = cirh.t %7 {scope = "up/kernel[0:1]"} : (tensor<1x8xf64>) -> tensor<8x1xf64>
  %46 = cirh.mm %29, %45 {scope = "up/kernel[0:1]"} : (tensor<3x8xf64>, tensor<8x1xf64>) -> tensor<3x1xf64>
  %47 = cirh.t %6 {scope = "up/kernel[0:1]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %48 = cirh.slice %47 {scope = "up/kernel[0:1]", dim = 0 : i64, start = 0 : i64, end = 1 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<1x3xf64>
  %49 = cirh.mm %48, %29 {scope = "up/kernel[0:1]"} : (tensor<1x3xf64>, tensor<3x8xf64>) -> tensor<1x8xf64>
  %50 = cirh.cat %46, %41, %36, %31 {scope = "up", dim = 1 : i64} : (tensor<3x1xf64>, tensor<3x1xf64>, tensor<3x1xf64>, tensor<3x1xf64>) -> tensor<3x4xf64>
  %in_bias_grad = cirh.sum %50 {scope = "in", dims = array<i64: 0>, keepdim = false} : (tensor<3x4xf64>) -> tensor<4xf64>
  %51 = cirh.t %x {scope = "in/kernel[2:4]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %52 = cirh.slice %51 {scope = "in/kernel[2:4]", dim = 0 : i64, start = 2 : i64, end = 4 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<2x3xf64>
  %53 = cirh.mm %52, %50 {scope = "in/kernel[2:4]"} : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %54 = cirh.t %x {scope = "in/kernel[0:2]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %55 = cirh.slice %54 {scope = "in/kernel[0:2]", dim = 0 : i64, start = 0 : i64, end = 2 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<2x3xf64>
  %56 = cirh.mm %55, %50 {scope = "in/kernel[0:2]"} : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  cirh.sgd %1, %53 {scope = "in/kernel[2:4]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %0, %56 {scope = "in/kernel[0:2]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %in_bias, %in_bias_grad {scope = "in", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<4xf64>, tensor<4xf64>
  cirh.sgd %10, %34 {scope = "up/kernel[3:4]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<1x8xf64>, tensor<1x8xf64>
  cirh.sgd %9, %39 {scope = "up/kernel[2:3]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<1x8xf64>, tensor<1x8xf64>
  cirh.sgd %8, %44 {scope = "up/kernel[1:2]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<1x8xf64>, tensor<1x8xf64>
  cirh.sgd %7, %49 {scope = "up/kernel[0:1]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<1x8xf64>, tensor<1x8xf64>
  cirh.sgd %up_bias, %up_bias_grad {scope = "up", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, []>} : tensor<8xf64>, tensor<8xf64>
}
