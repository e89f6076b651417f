"""Machine code of LAIR kernels, as LLVM IR text."""
