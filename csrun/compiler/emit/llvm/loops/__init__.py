"""LAIR kernels as loops: nests over the inner axes of a row, and bodies of their operators."""
