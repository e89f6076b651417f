builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<4x6x5xf32>
  %targets = cirh.input "targets" : tensor<4x3xi32>
  %times = cirh.input "times" : tensor<4xi64>
  %labels = cirh.input "labels" : tensor<4xi64>
  %0 = cirh.permute %x {dims = array<i64: 1, 0, 2>} : (tensor<4x6x5xf32>) -> tensor<6x4x5xf32>
  %1 = cirh.ctc_loss %0, %targets, %times, %labels {blank = 0 : i64, zero_infinity = true} : (tensor<6x4x5xf32>, tensor<4x3xi32>, tensor<4xi64>, tensor<4xi64>) -> tensor<4xf32>
  %2 = cirh.ctc_loss_backward %1, %0, %targets, %times, %labels {blank = 0 : i64, zero_infinity = true} : (tensor<4xf32>, tensor<6x4x5xf32>, tensor<4x3xi32>, tensor<4xi64>, tensor<4xi64>) -> tensor<6x4x5xf32>
  cirh.output "a" %2 : tensor<6x4x5xf32>
}
