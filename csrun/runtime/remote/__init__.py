"""Rings, weights and the store over TCP, for roles on separate machines."""
