"""The standard library's module, under its name here."""

import importlib.metadata as importlib_metadata

__all__ = ["importlib_metadata"]
