"""Reference implementations of all operators in NumPy, and the interpreter that runs them."""

from csrun.cirh.reference.interpreter import REFERENCES, Result, State, interpret

__all__ = ["REFERENCES", "Result", "State", "interpret"]
