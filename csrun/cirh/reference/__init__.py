"""Interpreter that evaluates the operators by their NumPy definitions."""

from csrun.cirh.reference.interpreter import ModuleResult, ModuleState, interpret
from csrun.cirh.reference.masks import MaskCounter

__all__ = ["MaskCounter", "ModuleResult", "ModuleState", "interpret"]
