builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "train"} {
  %ids = cirh.input "ids" : tensor<2x3xi32>
  %labels = cirh.input "labels" : tensor<2x3xi32>
  %0 = cirh.parameter "wte/embeddings[0:4]" {scope = "wte/embeddings[0:4]", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>, part = #cirh.part<"wte/embeddings", 20 : i64, 0 : i64>} : tensor<4x2xf64>
  %1 = cirh.parameter "wte/embeddings[4:8]" {scope = "wte/embeddings[4:8]", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>, part = #cirh.part<"wte/embeddings", 20 : i64, 4 : i64>} : tensor<4x2xf64>
  %2 = cirh.parameter "wte/embeddings[8:12]" {scope = "wte/embeddings[8:12]", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>, part = #cirh.part<"wte/embeddings", 20 : i64, 8 : i64>} : tensor<4x2xf64>
  %3 = cirh.parameter "wte/embeddings[12:16]" {scope = "wte/embeddings[12:16]", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>, part = #cirh.part<"wte/embeddings", 20 : i64, 12 : i64>} : tensor<4x2xf64>
  %4 = cirh.parameter "wte/embeddings[16:20]" {scope = "wte/embeddings[16:20]", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>, part = #cirh.part<"wte/embeddings", 20 : i64, 16 : i64>} : tensor<4x2xf64>
  %5 = cirh.embedding_part %0, %ids {scope = "wte/embeddings[0:4]", num_weights = 20 : i64, first = 0 : i64} : (tensor<4x2xf64>, tensor<2x3xi32>) -> tensor<2x3x2xf64>
  %6 = cirh.embedding_part %1, %ids, %5 {scope = "wte/embeddings[4:8]", num_weights = 20 : i64, first = 4 : i64} : (tensor<4x2xf64>, tensor<2x3xi32>, tensor<2x3x2xf64>) -> tensor<2x3x2xf64>
  %7 = cirh.embedding_part %2, %ids, %6 {scope = "wte/embeddings[8:12]", num_weights = 20 : i64, first = 8 : i64} : (tensor<4x2xf64>, tensor<2x3xi32>, tensor<2x3x2xf64>) -> tensor<2x3x2xf64>
  %8 = cirh.embedding_part %3, %ids, %7 {scope = "wte/embeddings[12:16]", num_weights = 20 : i64, first = 12 : i64} : (tensor<4x2xf64>, tensor<2x3xi32>, tensor<2x3x2xf64>) -> tensor<2x3x2xf64>
  %9 = cirh.embedding_part %4, %ids, %8 {scope = "wte/embeddings[16:20]", num_weights = 20 : i64, first = 16 : i64} : (tensor<4x2xf64>, tensor<2x3xi32>, tensor<2x3x2xf64>) -> tensor<2x3x2xf64>
  %ln_gamma = cirh.parameter "ln/gamma" {scope = "ln", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<2xf64>
  %ln_beta = cirh.parameter "ln/beta" {scope = "ln", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<2xf64>
  %10 = cirh.view %9 {scope = "ln", shape = array<i64: 6, 2>} : (tensor<2x3x2xf64>) -> tensor<6x2xf64>
  %11, %12, %13 = cirh.native_layer_norm %10, %ln_gamma, %ln_beta {scope = "ln", eps = 1.000000e-05 : f64} : (tensor<6x2xf64>, tensor<2xf64>, tensor<2xf64>) -> (tensor<6x2xf64>, tensor<6x1xf64>, tensor<6x1xf64>)
  %14 = cirh.view %labels {shape = array<i64: 6>} : (tensor<2x3xi32>) -> tensor<6xi32>
  %15 = cirh.valid_samples : tensor<i64>
  %16 = cirh.mask_padding %14, %15 {value = -1.000000e+02 : f64, dim = 0 : i64, rows = 3 : i64} : (tensor<6xi32>, tensor<i64>) -> tensor<6xi32>
  %17 = cirh.label_count %16 {ignore_index = -100 : i64, dtype = "float64"} : (tensor<6xi32>) -> tensor<f64>
  %18 = cirh.t %0 {scope = "wte/embeddings[0:4]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %19 = cirh.mm %11, %18 {scope = "wte/embeddings[0:4]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %20, %21 = cirh.log_sum_exp_part %19, %16 {scope = "wte/embeddings[0:4]", first = 0 : i64} : (tensor<6x4xf64>, tensor<6xi32>) -> (tensor<6xf64>, tensor<6xf64>)
  %22 = cirh.t %1 {scope = "wte/embeddings[4:8]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %23 = cirh.mm %11, %22 {scope = "wte/embeddings[4:8]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %24, %25 = cirh.log_sum_exp_part %23, %16, %20, %21 {scope = "wte/embeddings[4:8]", first = 4 : i64} : (tensor<6x4xf64>, tensor<6xi32>, tensor<6xf64>, tensor<6xf64>) -> (tensor<6xf64>, tensor<6xf64>)
  %26 = cirh.t %2 {scope = "wte/embeddings[8:12]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %27 = cirh.mm %11, %26 {scope = "wte/embeddings[8:12]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %28, %29 = cirh.log_sum_exp_part %27, %16, %24, %25 {scope = "wte/embeddings[8:12]", first = 8 : i64} : (tensor<6x4xf64>, tensor<6xi32>, tensor<6xf64>, tensor<6xf64>) -> (tensor<6xf64>, tensor<6xf64>)
  %30 = cirh.t %3 {scope = "wte/embeddings[12:16]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %31 = cirh.mm %11, %30 {scope = "wte/embeddings[12:16]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %32, %33 = cirh.log_sum_exp_part %31, %16, %28, %29 {scope = "wte/embeddings[12:16]", first = 12 : i64} : (tensor<6x4xf64>, tensor<6xi32>, tensor<6xf64>, tensor<6xf64>) -> (tensor<6xf64>, tensor<6xf64>)
  %34 = cirh.t %4 {scope = "wte/embeddings[16:20]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %35 = cirh.mm %11, %34 {scope = "wte/embeddings[16:20]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %36, %37 = cirh.log_sum_exp_part %35, %16, %32, %33 {scope = "wte/embeddings[16:20]", first = 16 : i64} : (tensor<6x4xf64>, tensor<6xi32>, tensor<6xf64>, tensor<6xf64>) -> (tensor<6xf64>, tensor<6xf64>)
  %38 = cirh.nll_loss_of_sums %36, %37, %16 {scope = "wte/embeddings[16:20]", classes = 20 : i64, ignore_index = -100 : i64} : (tensor<6xf64>, tensor<6xf64>, tensor<6xi32>) -> tensor<f64>
  %39 = cirh.div %38, %17 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  cirh.loss %39 : tensor<f64>
  %40 = cirh.full {value = 1.000000e+00 : f64} : tensor<f64>
  %41 = cirh.div %40, %17 : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %42 = cirh.t %4 {scope = "wte/embeddings[16:20]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %43 = cirh.mm %11, %42 {scope = "wte/embeddings[16:20]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %44 = cirh.nll_loss_part_backward %41, %43, %36, %16 {scope = "wte/embeddings[16:20]", first = 16 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<6x4xf64>, tensor<6xf64>, tensor<6xi32>) -> tensor<6x4xf64>
  %45 = cirh.mm %44, %4 {scope = "wte/embeddings[16:20]"} : (tensor<6x4xf64>, tensor<4x2xf64>) -> tensor<6x2xf64>
  %46 = cirh.t %11 {scope = "wte/embeddings[16:20]"} : (tensor<6x2xf64>) -> tensor<2x6xf64>
  %47 = cirh.mm %46, %44 {scope = "wte/embeddings[16:20]"} : (tensor<2x6xf64>, tensor<6x4xf64>) -> tensor<2x4xf64>
  %48 = cirh.t %47 {scope = "wte/embeddings[16:20]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %49 = cirh.t %3 {scope = "wte/embeddings[12:16]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %50 = cirh.mm %11, %49 {scope = "wte/embeddings[12:16]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %51 = cirh.nll_loss_part_backward %41, %50, %36, %16 {scope = "wte/embeddings[12:16]", first = 12 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<6x4xf64>, tensor<6xf64>, tensor<6xi32>) -> tensor<6x4xf64>
  %52 = cirh.add_product %45, %51, %3 {scope = "wte/embeddings[12:16]"} : (tensor<6x2xf64>, tensor<6x4xf64>, tensor<4x2xf64>) -> tensor<6x2xf64>
  %53 = cirh.t %11 {scope = "wte/embeddings[12:16]"} : (tensor<6x2xf64>) -> tensor<2x6xf64>
  %54 = cirh.mm %53, %51 {scope = "wte/embeddings[12:16]"} : (tensor<2x6xf64>, tensor<6x4xf64>) -> tensor<2x4xf64>
  %55 = cirh.t %54 {scope = "wte/embeddings[12:16]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %56 = cirh.t %2 {scope = "wte/embeddings[8:12]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %57 = cirh.mm %11, %56 {scope = "wte/embeddings[8:12]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %58 = cirh.nll_loss_part_backward %41, %57, %36, %16 {scope = "wte/embeddings[8:12]", first = 8 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<6x4xf64>, tensor<6xf64>, tensor<6xi32>) -> tensor<6x4xf64>
  %59 = cirh.add_product %52, %58, %2 {scope = "wte/embeddings[8:12]"} : (tensor<6x2xf64>, tensor<6x4xf64>, tensor<4x2xf64>) -> tensor<6x2xf64>
  %60 = cirh.t %11 {scope = "wte/embeddings[8:12]"} : (tensor<6x2xf64>) -> tensor<2x6xf64>
  %61 = cirh.mm %60, %58 {scope = "wte/embeddings[8:12]"} : (tensor<2x6xf64>, tensor<6x4xf64>) -> tensor<2x4xf64>
  %62 = cirh.t %61 {scope = "wte/embeddings[8:12]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %63 = cirh.t %1 {scope = "wte/embeddings[4:8]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %64 = cirh.mm %11, %63 {scope = "wte/embeddings[4:8]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %65 = cirh.nll_loss_part_backward %41, %64, %36, %16 {scope = "wte/embeddings[4:8]", first = 4 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<6x4xf64>, tensor<6xf64>, tensor<6xi32>) -> tensor<6x4xf64>
  %66 = cirh.add_product %59, %65, %1 {scope = "wte/embeddings[4:8]"} : (tensor<6x2xf64>, tensor<6x4xf64>, tensor<4x2xf64>) -> tensor<6x2xf64>
  %67 = cirh.t %11 {scope = "wte/embeddings[4:8]"} : (tensor<6x2xf64>) -> tensor<2x6xf64>
  %68 = cirh.mm %67, %65 {scope = "wte/embeddings[4:8]"} : (tensor<2x6xf64>, tensor<6x4xf64>) -> tensor<2x4xf64>
  %69 = cirh.t %68 {scope = "wte/embeddings[4:8]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %70 = cirh.t %0 {scope = "wte/embeddings[0:4]"} : (tensor<4x2xf64>) -> tensor<2x4xf64>
  %71 = cirh.mm %11, %70 {scope = "wte/embeddings[0:4]"} : (tensor<6x2xf64>, tensor<2x4xf64>) -> tensor<6x4xf64>
  %72 = cirh.nll_loss_part_backward %41, %71, %36, %16 {scope = "wte/embeddings[0:4]", first = 0 : i64, ignore_index = -100 : i64} : (tensor<f64>, tensor<6x4xf64>, tensor<6xf64>, tensor<6xi32>) -> tensor<6x4xf64>
  %73 = cirh.add_product %66, %72, %0 {scope = "wte/embeddings[0:4]"} : (tensor<6x2xf64>, tensor<6x4xf64>, tensor<4x2xf64>) -> tensor<6x2xf64>
  %74 = cirh.t %11 {scope = "wte/embeddings[0:4]"} : (tensor<6x2xf64>) -> tensor<2x6xf64>
  %75 = cirh.mm %74, %72 {scope = "wte/embeddings[0:4]"} : (tensor<2x6xf64>, tensor<6x4xf64>) -> tensor<2x4xf64>
  %76 = cirh.t %75 {scope = "wte/embeddings[0:4]"} : (tensor<2x4xf64>) -> tensor<4x2xf64>
  %77, %ln_gamma_grad, %ln_beta_grad = cirh.native_layer_norm_backward %73, %10, %12, %13, %ln_gamma {scope = "ln"} : (tensor<6x2xf64>, tensor<6x2xf64>, tensor<6x1xf64>, tensor<6x1xf64>, tensor<2xf64>) -> (tensor<6x2xf64>, tensor<2xf64>, tensor<2xf64>)
  %78 = cirh.view %77 {scope = "ln", shape = array<i64: 2, 3, 2>} : (tensor<6x2xf64>) -> tensor<2x3x2xf64>
  %79 = cirh.embedding_part_backward %78, %ids {scope = "wte/embeddings[16:20]", rows = 4 : i64, first = 16 : i64, padding_idx = -1 : i64} : (tensor<2x3x2xf64>, tensor<2x3xi32>) -> tensor<4x2xf64>
  %80 = cirh.embedding_part_backward %78, %ids {scope = "wte/embeddings[12:16]", rows = 4 : i64, first = 12 : i64, padding_idx = -1 : i64} : (tensor<2x3x2xf64>, tensor<2x3xi32>) -> tensor<4x2xf64>
  %81 = cirh.embedding_part_backward %78, %ids {scope = "wte/embeddings[8:12]", rows = 4 : i64, first = 8 : i64, padding_idx = -1 : i64} : (tensor<2x3x2xf64>, tensor<2x3xi32>) -> tensor<4x2xf64>
  %82 = cirh.embedding_part_backward %78, %ids {scope = "wte/embeddings[4:8]", rows = 4 : i64, first = 4 : i64, padding_idx = -1 : i64} : (tensor<2x3x2xf64>, tensor<2x3xi32>) -> tensor<4x2xf64>
  %83 = cirh.embedding_part_backward %78, %ids {scope = "wte/embeddings[0:4]", rows = 4 : i64, first = 0 : i64, padding_idx = -1 : i64} : (tensor<2x3x2xf64>, tensor<2x3xi32>) -> tensor<4x2xf64>
  %84 = cirh.add %48, %79 {scope = "wte/embeddings[16:20]"} : (tensor<4x2xf64>, tensor<4x2xf64>) -> tensor<4x2xf64>
  cirh.sgd %4, %84 {scope = "wte/embeddings[16:20]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x2xf64>, tensor<4x2xf64>
  %85 = cirh.add %55, %80 {scope = "wte/embeddings[12:16]"} : (tensor<4x2xf64>, tensor<4x2xf64>) -> tensor<4x2xf64>
  cirh.sgd %3, %85 {scope = "wte/embeddings[12:16]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x2xf64>, tensor<4x2xf64>
  %86 = cirh.add %62, %81 {scope = "wte/embeddings[8:12]"} : (tensor<4x2xf64>, tensor<4x2xf64>) -> tensor<4x2xf64>
  cirh.sgd %2, %86 {scope = "wte/embeddings[8:12]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x2xf64>, tensor<4x2xf64>
  %87 = cirh.add %69, %82 {scope = "wte/embeddings[4:8]"} : (tensor<4x2xf64>, tensor<4x2xf64>) -> tensor<4x2xf64>
  cirh.sgd %1, %87 {scope = "wte/embeddings[4:8]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x2xf64>, tensor<4x2xf64>
  %88 = cirh.add %76, %83 {scope = "wte/embeddings[0:4]"} : (tensor<4x2xf64>, tensor<4x2xf64>) -> tensor<4x2xf64>
  cirh.sgd %0, %88 {scope = "wte/embeddings[0:4]", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<4x2xf64>, tensor<4x2xf64>
  cirh.sgd %ln_gamma, %ln_gamma_grad {scope = "ln", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2xf64>, tensor<2xf64>
  cirh.sgd %ln_beta, %ln_beta_grad {scope = "ln", algorithm = #cirh.sgd_algorithm<#cirh.schedule<"constant", {learning_rate = 1.000000e-01 : f64, warmup_steps = 0 : i64}>, 0.000000e+00 : f64, false, 0.000000e+00 : f64, [], 0.000000e+00 : f64, false, false>} : tensor<2xf64>, tensor<2xf64>
}
