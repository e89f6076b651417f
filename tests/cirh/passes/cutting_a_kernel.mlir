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
  cirh.sgd %in_kernel, %in_kernel_grad {scope = "in", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x4xf64>, tensor<4x4xf64>
  cirh.sgd %in_bias, %in_bias_grad {scope = "in", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4xf64>, tensor<4xf64>
  cirh.sgd %up_kernel, %up_kernel_grad {scope = "up", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x8xf64>, tensor<4x8xf64>
  cirh.sgd %up_bias, %up_bias_grad {scope = "up", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<8xf64>, tensor<8xf64>
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
  %7 = cirh.parameter "up/kernel[:,0:2]" {scope = "up/kernel[:,0:2]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 8 : i64, 0 : i64>, transposed = true} : tensor<2x4xf64>
  %8 = cirh.parameter "up/kernel[:,2:4]" {scope = "up/kernel[:,2:4]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 8 : i64, 2 : i64>, transposed = true} : tensor<2x4xf64>
  %9 = cirh.parameter "up/kernel[:,4:6]" {scope = "up/kernel[:,4:6]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 8 : i64, 4 : i64>, transposed = true} : tensor<2x4xf64>
  %10 = cirh.parameter "up/kernel[:,6:8]" {scope = "up/kernel[:,6:8]", initializer = #cirh.initializer<"uniform", 0.70710678118654757 : f64>, part = #cirh.part<"up/kernel", 8 : i64, 6 : i64>, transposed = true} : tensor<2x4xf64>
  %up_bias = cirh.parameter "up/bias" {scope = "up", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<8xf64>
  %11 = cirh.valid_samples : tensor<i64>
  %12 = cirh.mask_padding %labels, %11 {value = -1.000000e+02 : f64, dim = 0 : i64, rows = 1 : i64} : (tensor<3xi32>, tensor<i64>) -> tensor<3xi32>
  %13 = cirh.label_count %12 {ignore_index = -100 : i64, dtype = "float64"} : (tensor<3xi32>) -> tensor<f64>
  %14 = cirh.clone %up_bias {scope = "up"} : (tensor<8xf64>) -> tensor<8xf64>
  %15 = cirh.t %7 {scope = "up/kernel[:,0:2]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %16 = cirh.mm %6, %15 {scope = "up/kernel[:,0:2]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %17 = cirh.slice %14 {scope = "up/kernel[:,0:2]", dim = 0 : i64, start = 0 : i64, end = 2 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %18 = cirh.add %16, %17 {scope = "up/kernel[:,0:2]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %19, %20 = cirh.log_sum_exp_part %18, %12 {scope = "up/kernel[:,0:2]", first = 0 : i64} : (tensor<3x2xf64>, tensor<3xi32>) -> (tensor<3xf64>, tensor<3xf64>)
  %21 = cirh.t %8 {scope = "up/kernel[:,2:4]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %22 = cirh.mm %6, %21 {scope = "up/kernel[:,2:4]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %23 = cirh.slice %14 {scope = "up/kernel[:,2:4]", dim = 0 : i64, start = 2 : i64, end = 4 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %24 = cirh.add %22, %23 {scope = "up/kernel[:,2:4]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %25, %26 = cirh.log_sum_exp_part %24, %12, %19, %20 {scope = "up/kernel[:,2:4]", first = 2 : i64} : (tensor<3x2xf64>, tensor<3xi32>, tensor<3xf64>, tensor<3xf64>) -> (tensor<3xf64>, tensor<3xf64>)
  %27 = cirh.t %9 {scope = "up/kernel[:,4:6]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %28 = cirh.mm %6, %27 {scope = "up/kernel[:,4:6]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %29 = cirh.slice %14 {scope = "up/kernel[:,4:6]", dim = 0 : i64, start = 4 : i64, end = 6 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %30 = cirh.add %28, %29 {scope = "up/kernel[:,4:6]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %31, %32 = cirh.log_sum_exp_part %30, %12, %25, %26 {scope = "up/kernel[:,4:6]", first = 4 : i64} : (tensor<3x2xf64>, tensor<3xi32>, tensor<3xf64>, tensor<3xf64>) -> (tensor<3xf64>, tensor<3xf64>)
  %33 = cirh.t %10 {scope = "up/kernel[:,6:8]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %34 = cirh.mm %6, %33 {scope = "up/kernel[:,6:8]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %35 = cirh.slice %14 {scope = "up/kernel[:,6:8]", dim = 0 : i64, start = 6 : i64, end = 8 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %36 = cirh.add %34, %35 {scope = "up/kernel[:,6:8]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %37, %38 = cirh.log_sum_exp_part %36, %12, %31, %32 {scope = "up/kernel[:,6:8]", first = 6 : i64} : (tensor<3x2xf64>, tensor<3xi32>, tensor<3xf64>, tensor<3xf64>) -> (tensor<3xf64>, tensor<3xf64>)
  %39 = cirh.nll_loss_of_sums %37, %38, %12 {scope = "up/kernel[:,6:8]", classes = 8 : i64, ignore_index = -100 : i64} : (tensor<3xf64>, tensor<3xf64>, tensor<3xi32>) -> tensor<f64>
  %40 = cirh.div %39, %13 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  cirh.loss %40 : tensor<f64>
  %41 = cirh.full {value = 1.000000e+00 : f64} : tensor<f64>
  %42 = cirh.div %41, %13 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %43 = cirh.t %10 {scope = "up/kernel[:,6:8]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %44 = cirh.mm %6, %43 {scope = "up/kernel[:,6:8]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %45 = cirh.slice %14 {scope = "up/kernel[:,6:8]", dim = 0 : i64, start = 6 : i64, end = 8 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %46 = cirh.add %44, %45 {scope = "up/kernel[:,6:8]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %47 = cirh.nll_loss_part_backward %42, %46, %37, %12 {scope = "up/kernel[:,6:8]", first = 6 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<3x2xf64>, tensor<3xf64>, tensor<3xi32>) -> tensor<3x2xf64>
  %48 = cirh.mm %47, %10 {scope = "up/kernel[:,6:8]"} : (tensor<3x2xf64>, tensor<2x4xf64>) -> tensor<3x4xf64>
  %49 = cirh.sum %47 {scope = "up/kernel[:,6:8]", dims = array<i64: 0>, keepdim = false} : (tensor<3x2xf64>) -> tensor<2xf64>
  %50 = cirh.t %6 {scope = "up/kernel[:,6:8]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %51 = cirh.mm %50, %47 {scope = "up/kernel[:,6:8]"} : (tensor<4x3xf64>, tensor<3x2xf64>) -> tensor<4x2xf64>
  %52 = cirh.t %51 {scope = "up/kernel[:,6:8]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %53 = cirh.t %9 {scope = "up/kernel[:,4:6]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %54 = cirh.mm %6, %53 {scope = "up/kernel[:,4:6]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %55 = cirh.slice %14 {scope = "up/kernel[:,4:6]", dim = 0 : i64, start = 4 : i64, end = 6 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %56 = cirh.add %54, %55 {scope = "up/kernel[:,4:6]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %57 = cirh.nll_loss_part_backward %42, %56, %37, %12 {scope = "up/kernel[:,4:6]", first = 4 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<3x2xf64>, tensor<3xf64>, tensor<3xi32>) -> tensor<3x2xf64>
  %58 = cirh.add_product %48, %57, %9 {scope = "up/kernel[:,4:6]"} : (tensor<3x4xf64>, tensor<3x2xf64>, tensor<2x4xf64>) -> tensor<3x4xf64>
  %59 = cirh.sum %57 {scope = "up/kernel[:,4:6]", dims = array<i64: 0>, keepdim = false} : (tensor<3x2xf64>) -> tensor<2xf64>
  %60 = cirh.t %6 {scope = "up/kernel[:,4:6]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %61 = cirh.mm %60, %57 {scope = "up/kernel[:,4:6]"} : (tensor<4x3xf64>, tensor<3x2xf64>) -> tensor<4x2xf64>
  %62 = cirh.t %61 {scope = "up/kernel[:,4:6]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %63 = cirh.t %8 {scope = "up/kernel[:,2:4]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %64 = cirh.mm %6, %63 {scope = "up/kernel[:,2:4]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %65 = cirh.slice %14 {scope = "up/kernel[:,2:4]", dim = 0 : i64, start = 2 : i64, end = 4 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %66 = cirh.add %64, %65 {scope = "up/kernel[:,2:4]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %67 = cirh.nll_loss_part_backward %42, %66, %37, %12 {scope = "up/kernel[:,2:4]", first = 2 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<3x2xf64>, tensor<3xf64>, tensor<3xi32>) -> tensor<3x2xf64>
  %68 = cirh.add_product %58, %67, %8 {scope = "up/kernel[:,2:4]"} : (tensor<3x4xf64>, tensor<3x2xf64>, tensor<2x4xf64>) -> tensor<3x4xf64>
  %69 = cirh.sum %67 {scope = "up/kernel[:,2:4]", dims = array<i64: 0>, keepdim = false} : (tensor<3x2xf64>) -> tensor<2xf64>
  %70 = cirh.t %6 {scope = "up/kernel[:,2:4]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %71 = cirh.mm %70, %67 {scope = "up/kernel[:,2:4]"} : (tensor<4x3xf64>, tensor<3x2xf64>) -> tensor<4x2xf64>
  %72 = cirh.t %71 {scope = "up/kernel[:,2:4]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %73 = cirh.t %7 {scope = "up/kernel[:,0:2]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %74 = cirh.mm %6, %73 {scope = "up/kernel[:,0:2]"} : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %75 = cirh.slice %14 {scope = "up/kernel[:,0:2]", dim = 0 : i64, start = 0 : i64, end = 2 : i64, step = 1 : i64} : (tensor<8xf64>) -> tensor<2xf64>
  %76 = cirh.add %74, %75 {scope = "up/kernel[:,0:2]"} : (tensor<3x2xf64>, tensor<2xf64>) -> tensor<3x2xf64>
  %77 = cirh.nll_loss_part_backward %42, %76, %37, %12 {scope = "up/kernel[:,0:2]", first = 0 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<3x2xf64>, tensor<3xf64>, tensor<3xi32>) -> tensor<3x2xf64>
  %78 = cirh.add_product %68, %77, %7 {scope = "up/kernel[:,0:2]"} : (tensor<3x4xf64>, tensor<3x2xf64>, tensor<2x4xf64>) -> tensor<3x4xf64>
  %79 = cirh.sum %77 {scope = "up/kernel[:,0:2]", dims = array<i64: 0>, keepdim = false} : (tensor<3x2xf64>) -> tensor<2xf64>
  %80 = cirh.t %6 {scope = "up/kernel[:,0:2]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %81 = cirh.mm %80, %77 {scope = "up/kernel[:,0:2]"} : (tensor<4x3xf64>, tensor<3x2xf64>) -> tensor<4x2xf64>
  %82 = cirh.t %81 {scope = "up/kernel[:,0:2]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %83 = cirh.cat %79, %69, %59, %49 {scope = "up", dim = 0 : i64} : (tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>) -> tensor<8xf64>
  %up_bias_grad = cirh.view %83 {scope = "up", shape = array<i64: 8>} : (tensor<8xf64>) -> tensor<8xf64>
  %in_bias_grad = cirh.sum %78 {scope = "in", dims = array<i64: 0>, keepdim = false} : (tensor<3x4xf64>) -> tensor<4xf64>
  %84 = cirh.t %x {scope = "in/kernel[2:4]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %85 = cirh.slice %84 {scope = "in/kernel[2:4]", dim = 0 : i64, start = 2 : i64, end = 4 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<2x3xf64>
  %86 = cirh.mm %85, %78 {scope = "in/kernel[2:4]"} : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  %87 = cirh.t %x {scope = "in/kernel[0:2]"} : (tensor<3x4xf64>) -> tensor<4x3xf64>
  %88 = cirh.slice %87 {scope = "in/kernel[0:2]", dim = 0 : i64, start = 0 : i64, end = 2 : i64, step = 1 : i64} : (tensor<4x3xf64>) -> tensor<2x3xf64>
  %89 = cirh.mm %88, %78 {scope = "in/kernel[0:2]"} : (tensor<2x3xf64>, tensor<3x4xf64>) -> tensor<2x4xf64>
  cirh.sgd %1, %86 {scope = "in/kernel[2:4]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %0, %89 {scope = "in/kernel[0:2]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %in_bias, %in_bias_grad {scope = "in", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4xf64>, tensor<4xf64>
  cirh.sgd %10, %52 {scope = "up/kernel[:,6:8]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %9, %62 {scope = "up/kernel[:,4:6]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %8, %72 {scope = "up/kernel[:,2:4]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %7, %82 {scope = "up/kernel[:,0:2]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2x4xf64>, tensor<2x4xf64>
  cirh.sgd %up_bias, %up_bias_grad {scope = "up", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<8xf64>, tensor<8xf64>
}
