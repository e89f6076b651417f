"""Gradient rules: for each operator, the backward operators that carry a gradient through it."""

from csrun.cirh.gradients.arithmetic import ARITHMETIC_RULES
from csrun.cirh.gradients.neural import NEURAL_RULES
from csrun.cirh.gradients.table import Backward, Gradients, Rule, Rules

RULES: Rules = {**ARITHMETIC_RULES, **NEURAL_RULES}

__all__ = ["RULES", "Backward", "Gradients", "Rule", "Rules"]
