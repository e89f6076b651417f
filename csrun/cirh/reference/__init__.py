"""Reference implementations of all operators in NumPy, and the interpreter that runs them."""

from csrun.cirh.reference.interpreter import REFERENCES, Result, State, interpret
from csrun.cirh.reference.neural import Draw

__all__ = ["REFERENCES", "Draw", "Result", "State", "interpret"]
