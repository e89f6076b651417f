"""Operators of an optimizer with a number that may differ in each step, such as a learning rate.

They are recorded as a product by the number and a sum, since a product takes it with the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten
#: Operators that add something times a number: its name, and what is scaled, of two operands.
_SCALED: Mapping[Any, tuple[str, Any]] = {
    aten.add_.Tensor: ("alpha", None),
    aten.add.Tensor: ("alpha", None),
    aten.sub_.Tensor: ("alpha", None),
    aten.addcdiv_.default: ("value", aten.div.Tensor),
    aten.addcmul_.default: ("value", aten.mul.Tensor),
}
_SUMS: Mapping[Any, Callable[..., Any]] = {
    aten.add.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub_.Tensor,
}


def has_number(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """True if an operator scales what it adds."""
    return func in _SCALED and kwargs.get(_SCALED[func][0], 1) != 1


def record_scaled(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Record an operator with a number, in parts."""
    key, combine = _SCALED[func]
    target, *operands = (recorder.traced(x) if isinstance(x, torch.Tensor) else x for x in args)
    term = operands[0] if combine is None else recorder.record(None, combine, tuple(operands), {})
    term = recorder.record(None, aten.mul.Tensor, (term, kwargs[key]), {})
    total = _SUMS.get(func, aten.add_.Tensor)
    if total._schema.is_mutable:
        return recorder.writes.record(total, (target, term), {})
    return recorder.record(None, total, (target, term), {})
