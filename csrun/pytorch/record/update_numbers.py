"""Operators of an optimizer with numbers of its own.

A number may differ in each step, such as a learning rate. Tensors outside of the optimizer's state
are the host's.

An operator that adds something times the number is recorded as a product and a sum, because a
product can take the number as an input of the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import map_arguments, written_by
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor

aten = torch.ops.aten
#: Operators that add something times a number: the number's name, and which of two operands it
#: scales.
_SCALED: Mapping[Any, tuple[str, Any]] = {
    aten.add_.Tensor: ("alpha", None),
    aten.add.Tensor: ("alpha", None),
    aten.sub_.Tensor: ("alpha", None),
    aten.addcdiv_.default: ("value", aten.div.Tensor),
    aten.addcmul_.default: ("value", aten.mul.Tensor),
}
_LERPS = (aten.lerp.Scalar, aten.lerp_.Scalar)
_SUMS: Mapping[Any, Callable[..., Any]] = {
    aten.add.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub_.Tensor,
}

#: Operators on lists call the overload for numbers, Python code the other one, which accepts both.
_OVERLOADS: Mapping[Any, Any] = {
    packet.Scalar: packet.Tensor
    for name in ("add", "sub", "mul", "div")
    for packet in (getattr(aten, name), getattr(aten, f"{name}_"))
}


def overload_of_tensors(func: Any) -> Any:
    """Return the overload of an operator that takes a number or a tensor, if there is one."""
    return _OVERLOADS.get(func, func)


def has_number(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """True if an operator scales its addend."""
    return func in _LERPS or (func in _SCALED and kwargs.get(_SCALED[func][0], 1) != 1)


def record_scaled(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Record an operator with a number, in parts."""
    if func in _LERPS:
        return _record_lerp(recorder, func, *args)
    key, combine = _SCALED[func]
    target, *operands = (recorder.traced(x) if isinstance(x, torch.Tensor) else x for x in args)
    term = operands[0] if combine is None else recorder.record(None, combine, tuple(operands), {})
    term = recorder.record(None, aten.mul.Tensor, (term, kwargs[key]), {})
    total = _SUMS.get(func, aten.add_.Tensor)
    if total._schema.is_mutable:
        return recorder.writes.record(total, (target, term), {})
    return recorder.record(None, total, (target, term), {})


def _record_lerp(recorder: Any, func: Any, start: Any, end: Any, weight: float) -> Any:
    """Record start + weight (end - start), from the nearer end as PyTorch computes it."""
    first, last = (recorder.traced(x) for x in (start, end))
    way = recorder.record(None, aten.sub.Tensor, (last, first), {})
    is_near = abs(weight) < 0.5
    term = recorder.record(None, aten.mul.Tensor, (way, weight if is_near else 1 - weight), {})
    total, operand = (aten.add.Tensor, first) if is_near else (aten.sub.Tensor, last)
    value = recorder.record(None, total, (operand, term), {})
    if func._schema.is_mutable:
        return recorder.writes.record(aten.copy_.default, (first, value), {})
    return value


def as_input(recorder: Any, tensor: TracedTensor) -> bool:
    """Make a detached value of an earlier step that an optimizer has kept an input of this one.

    False if it has a gradient, or aliases, which would not see a write to it.
    """
    if tensor.requires_grad or len(list(tensor.memory.tensors)) > 1:
        return False
    with unrecorded():
        numbers = tensor.numbers().clone()
    recorder.plain.note_varying(numbers)
    tensor.replace_by(recorder.alias(recorder.plain.traced(numbers)))
    return True


def write_on_host(recorder: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Compute a write of values of the step into a tensor that is none of its own."""
    for target in written_by(func, args, kwargs):
        recorder.plain.note_varying(target)
    args, kwargs = map_arguments(
        lambda a: recorder.read(a) if isinstance(a, TracedTensor) else a, args, kwargs
    )
    with unrecorded():
        return call_for_user(func, args, kwargs)
