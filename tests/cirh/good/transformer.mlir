builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "train"} {
  %ids = cirh.input "ids" : tensor<2x4xi64>
  %kept = cirh.input "kept" : tensor<2x1x4x4xi1>
  %table = cirh.parameter "table/weight" {scope = "table", initializer = #cirh.initializer<"normal", 2.000000e-02 : f64>} : tensor<9x6xf32>
  %gamma = cirh.parameter "norm/gamma" {scope = "norm", initializer = #cirh.initializer<"ones", 0.000000e+00 : f64>} : tensor<6xf32>
  %beta = cirh.parameter "norm/beta" {scope = "norm", initializer = #cirh.initializer<"zeros", 0.000000e+00 : f64>} : tensor<6xf32>
  %x = cirh.embedding %table, %ids {padding_idx = -1 : i64} : (tensor<9x6xf32>, tensor<2x4xi64>) -> tensor<2x4x6xf32>
  %out, %mean, %rstd = cirh.native_layer_norm %x, %gamma, %beta {eps = 1.000000e-05 : f64} : (tensor<2x4x6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x4x6xf32>, tensor<2x4x1xf32>, tensor<2x4x1xf32>)
  %dx, %dgamma, %dbeta = cirh.native_layer_norm_backward %out, %x, %mean, %rstd, %gamma : (tensor<2x4x6xf32>, tensor<2x4x6xf32>, tensor<2x4x1xf32>, tensor<2x4x1xf32>, tensor<6xf32>) -> (tensor<2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
  %rms, %rrms = cirh._fused_rms_norm %out, %gamma {eps = 1.000000e-05 : f64} : (tensor<2x4x6xf32>, tensor<6xf32>) -> (tensor<2x4x6xf32>, tensor<2x4x1xf32>)
  %0, %1 = cirh._fused_rms_norm_backward %dx, %out, %rrms, %gamma : (tensor<2x4x6xf32>, tensor<2x4x6xf32>, tensor<2x4x1xf32>, tensor<6xf32>) -> (tensor<2x4x6xf32>, tensor<6xf32>)
  %q = cirh.view %rms {shape = array<i64: 2, 2, 4, 3>} : (tensor<2x4x6xf32>) -> tensor<2x2x4x3xf32>
  %attended, %sums = cirh.scaled_dot_product_attention %q, %q, %q {is_causal = true, scale = 5.000000e-01 : f64} : (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>) -> (tensor<2x2x4x3xf32>, tensor<2x2x4xf32>)
  %2, %3 = cirh.scaled_dot_product_attention %q, %q, %q, %kept {is_causal = false, scale = 5.000000e-01 : f64} : (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x1x4x4xi1>) -> (tensor<2x2x4x3xf32>, tensor<2x2x4xf32>)
  %4, %5, %6 = cirh.scaled_dot_product_attention_backward %2, %q, %q, %q, %2, %3, %kept {is_causal = false, scale = 5.000000e-01 : f64} : (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4xf32>, tensor<2x1x4x4xi1>) -> (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>)
  %7 = cirh.softmax %4 {dim = 3 : i64} : (tensor<2x2x4x3xf32>) -> tensor<2x2x4x3xf32>
  %8 = cirh.softmax_backward_data %5, %7 {dim = 3 : i64} : (tensor<2x2x4x3xf32>, tensor<2x2x4x3xf32>) -> tensor<2x2x4x3xf32>
  %9 = cirh.embedding_dense_backward %0, %ids {num_weights = 9 : i64, padding_idx = 0 : i64} : (tensor<2x4x6xf32>, tensor<2x4xi64>) -> tensor<9x6xf32>
  %10 = cirh.rotary_embedding %out {dim = 1 : i64, rotary_dim = 4 : i64, base = 1.000000e+04 : f64, is_interleaved = true, is_inverse = false} : (tensor<2x4x6xf32>) -> tensor<2x4x6xf32>
}
