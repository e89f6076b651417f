"""What judges an input pipeline: measurements, scaling laws, the Input Function Report."""
