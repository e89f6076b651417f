// expect: targets and lengths must be integers, got int32, float32, int64
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<6x4x5xf32>
  %targets = cirh.input "targets" : tensor<4x3xi32>
  %times = cirh.input "times" : tensor<4xf32>
  %labels = cirh.input "labels" : tensor<4xi64>
  %0 = cirh.ctc_loss %x, %targets, %times, %labels {blank = 0 : i64, zero_infinity = true} : (tensor<6x4x5xf32>, tensor<4x3xi32>, tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  cirh.output "a" %0 : tensor<4xf32>
}
