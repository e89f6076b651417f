"""Machine code of LAIR kernels, as text of LLVM IR."""
