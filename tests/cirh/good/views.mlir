builtin.module attributes {cirh.precision = "float64", cirh.run_mode = "predict"} {
  %x = cirh.input "x" : tensor<2x3xf64>
  %0 = cirh.clone %x : (tensor<2x3xf64>) -> tensor<2x3xf64>
  %1 = cirh.slice %0 {dim = 1 : i64, start = 0 : i64, end = 3 : i64, step = 2 : i64} : (tensor<2x3xf64>) -> tensor<2x2xf64>
  %2 = cirh.slice_backward %1 {input_sizes = array<i64: 2, 3>, dim = 1 : i64, start = 0 : i64, end = 3 : i64, step = 2 : i64} : (tensor<2x2xf64>) -> tensor<2x3xf64>
  %3 = cirh.select %2 {dim = 0 : i64, index = 1 : i64} : (tensor<2x3xf64>) -> tensor<3xf64>
  %4 = cirh.select_backward %3 {input_sizes = array<i64: 2, 3>, dim = 0 : i64, index = 1 : i64} : (tensor<3xf64>) -> tensor<2x3xf64>
  %5 = cirh.cat %4, %x {dim = 0 : i64} : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<4x3xf64>
  %6 = cirh.t %x : (tensor<2x3xf64>) -> tensor<3x2xf64>
  %7 = cirh.matmul %5, %6 : (tensor<4x3xf64>, tensor<3x2xf64>) -> tensor<4x2xf64>
  cirh.output "out" %7 : tensor<4x2xf64>
}
