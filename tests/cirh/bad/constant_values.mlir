// expect: values must fill tensor<5xi64>, got 32 bytes
builtin.module attributes {cirh.precision = "float32", cirh.run_mode = "predict"} {
  %0 = cirh.constant {values = "eJxjZkAFTFCaEUoDAACoAAc="} : tensor<5xi64>
}
