"""Comparison of two trainings operator by operator: both are run again with values recorded."""

from csrun.advice.operator_comparison.first_difference import (
    OperatorComparison,
    OperatorDifference,
    compare_commands,
    compare_operators,
    compare_with_torch,
)
from csrun.advice.operator_comparison.value_difference import Tolerance, ValueDifference

__all__ = [
    "OperatorComparison",
    "OperatorDifference",
    "Tolerance",
    "ValueDifference",
    "compare_commands",
    "compare_operators",
    "compare_with_torch",
]
