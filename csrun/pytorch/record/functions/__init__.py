"""Functions of PyTorch above autograd: composite operators, and rewritten functions."""
