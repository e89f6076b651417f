"""Utilities of transformers."""
