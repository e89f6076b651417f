"""Rings, weights and the store over TCP, for roles on machines of their own."""
