// expect: values: 
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %0 = cirh.constant {values = "no values"} : tensor<5xi64>
}
