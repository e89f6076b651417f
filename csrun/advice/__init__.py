"""Analysis of input pipelines: measurements, scaling laws, the Input Function Report."""
