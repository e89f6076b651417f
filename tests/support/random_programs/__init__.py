"""Seeded random programs over csrun.nn, and the same in PyTorch."""
