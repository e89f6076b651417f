"""Guards on the values that forward's Python reads, checked before steps that skip it."""

from csrun.pytorch.guards.states import Guards

__all__ = ["Guards"]
