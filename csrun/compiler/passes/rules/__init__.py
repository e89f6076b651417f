"""Rewrite rules as data: a table a purpose, each rule with a name and the operators it starts from.

A rule changes the module around its operator and says so, or leaves it as it is. Tables are tuples:
they compose with `+`, and earlier rules are tried first.
"""

from csrun.compiler.passes.rules.base import DEAD_CODE, PURE, Rule, Rules
from csrun.compiler.passes.rules.canonical import CANONICAL
from csrun.compiler.passes.rules.folding import FOLDING
from csrun.compiler.passes.rules.fusion import FUSION

__all__ = ["CANONICAL", "DEAD_CODE", "FOLDING", "FUSION", "PURE", "Rule", "Rules"]
