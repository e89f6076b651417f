"""Comparison of two trainings operator by operator: both are run again with values recorded."""

from csrun.advice.operator_comparison.comparing import (
    OperatorComparison,
    OperatorDifference,
    compare_operators,
)
from csrun.advice.operator_comparison.value_difference import Tolerance, ValueDifference

__all__ = [
    "OperatorComparison",
    "OperatorDifference",
    "Tolerance",
    "ValueDifference",
    "compare_operators",
]
