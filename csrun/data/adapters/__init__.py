"""What an iterable of another library can tell of itself, without importing that library."""

from csrun.data.adapters.random_access import RandomAccess
from csrun.data.adapters.recognise import describe, indexed

__all__ = ["RandomAccess", "describe", "indexed"]
