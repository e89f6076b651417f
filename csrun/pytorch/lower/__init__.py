"""Lowering of a Recording to CIRH, and its interpretation on tensors with values."""
