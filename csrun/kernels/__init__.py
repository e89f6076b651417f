"""NumPy kernels that compiled programs call."""
