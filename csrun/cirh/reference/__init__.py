"""The interpreter that runs the operators as they define themselves in NumPy."""

from csrun.cirh.reference.interpreter import ModuleResult, ModuleState, interpret
from csrun.cirh.reference.masks import MaskCounter

__all__ = ["MaskCounter", "ModuleResult", "ModuleState", "interpret"]
