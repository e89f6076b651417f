"""Operators whose operands may be float32 and float64, as PyTorch promotes them.

Binary operators cast their operands themselves. Others, such as products, take one type.
"""

from collections.abc import Sequence
from typing import Any

from torch.utils._pytree import tree_leaves, tree_map
from xdsl.ir import SSAValue

from csrun.pytorch.operators.base import Emission, dtype, floats

PROMOTING = frozenset(
    f"aten.{name}.default"
    for name in (
        "addcdiv",
        "addcmul",
        "cat",
        "mse_loss",
        "mse_loss_backward",
        "smooth_l1_loss",
        "smooth_l1_loss_backward",
        "stack",
    )
)


def in_widest_type(e: Emission, arguments: Sequence[Any]) -> Sequence[Any]:
    """Return an operator's arguments with all floats in the widest of their types."""
    found = {dtype(x) for x in tree_leaves(arguments) if _is_float(x)}
    if len(found) < 2:
        return arguments
    cast: Sequence[Any] = tree_map(
        lambda x: e.cast(x, max(found)) if _is_float(x) else x, arguments
    )
    return cast


def _is_float(argument: Any) -> bool:
    return isinstance(argument, SSAValue) and floats(argument)
