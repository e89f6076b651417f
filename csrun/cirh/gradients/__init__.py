"""Gradient rules: for each operator, the backward operators that carry a gradient through it."""

from csrun.cirh.gradients import activation, elementwise, loss, matrix, random, reduction, shape
from csrun.cirh.gradients.table import Backward, Gradients, Rule, Rules

FAMILIES = (shape, elementwise, matrix, reduction, activation, random, loss)
RULES: Rules = {op: rule for family in FAMILIES for op, rule in family.RULES.items()}

__all__ = ["RULES", "Backward", "Gradients", "Rule", "Rules"]
