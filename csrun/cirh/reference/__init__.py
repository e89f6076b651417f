"""The interpreter that runs the operators as they define themselves in NumPy."""

from csrun.cirh.reference.interpreter import Result, State, interpret
from csrun.cirh.reference.masks import Draw

__all__ = ["Draw", "Result", "State", "interpret"]
