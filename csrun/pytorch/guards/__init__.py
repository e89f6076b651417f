"""Guards: values that forward's Python reads, compared before steps in which it does not run."""

from csrun.pytorch.guards.states import Guards

__all__ = ["Guards"]
