"""Executable → trained weights: one file a role, and the wires between them."""
