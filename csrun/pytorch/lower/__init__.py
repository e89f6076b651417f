"""Lowering of a Recording to CIRH, and its interpretation with values."""
