"""Writes into tensors: each becomes a new value, which all tensors that lie there then have.

A view that others see beside its base would have to be written back into that: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from csrun.pytorch.capture.traced import Traced

if TYPE_CHECKING:
    from csrun.pytorch.capture.recorder import Recorder

aten = torch.ops.aten
#: In-place operators whose other form has another name or other arguments.
_SPECIAL: dict[Any, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    aten.zero_.default: (aten.zeros_like.default, lambda x: (x,)),
    aten.fill_.Scalar: (aten.full_like.default, lambda x, value: (x, value)),
    aten.pow_.Scalar: (aten.pow.Tensor_Scalar, lambda x, exponent: (x, exponent)),
    aten.pow_.Tensor: (aten.pow.Tensor_Tensor, lambda x, exponent: (x, exponent)),
    aten.copy_.default: (aten.copy.default, lambda x, source, *_: (x, source)),
}


class Writes:
    """The writes of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Write the form without a write down, and give the written tensor its result."""
        targets = self._targets(func, args, kwargs)
        for target in targets:
            self._check(func, target)
        call, arguments = self._functional(func, args)
        found = self._recorder.record(str(call), call, arguments, kwargs)
        made = found if isinstance(found, tuple | list) else [found]
        for target, new in zip(targets, made[-len(targets) :], strict=True):
            self._replace(target, new)
        returned = len(func._schema.returns)
        if returned == 0:
            return None
        if len(made) == len(targets):
            return targets[0] if returned == 1 else targets
        return tuple(made[:returned])

    def check_given(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raises: CaptureError for a write into what is not traced, whose views would not see it"""
        for target in self._written(func, args, kwargs):
            if not isinstance(target, Traced) and not self._recorder.is_owned(target):
                raise self._recorder.refused(
                    f"{func} writes what a step computes into a tensor that was made without it: "
                    "put the parts together with torch.stack, torch.cat or torch.where"
                )

    def _targets(self, func: Any, args: Any, kwargs: Any) -> list[Traced]:
        return [t for t in self._written(func, args, kwargs) if isinstance(t, Traced)]

    @staticmethod
    def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        names = [a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        by_name = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        given = tree_leaves([by_name[n] for n in names])
        return [t for t in given if isinstance(t, torch.Tensor)]

    def _check(self, func: Any, target: Traced) -> None:
        refused = self._recorder.refused
        if target.memory.stored and not target.memory.stored.startswith("buffer"):
            raise refused(
                f"{func} writes into {target.memory.stored}, which csrun keeps, and the optimizer "
                "alone changes: write x = x * 2 in place of x *= 2"
            )
        if any(other.geometry != target.geometry for other in target.memory.tensors):
            raise refused(
                f"{func} writes into a view, or into what there is a view of; the tensor that it "
                "is a view of would not see it: use an operator that gives a new tensor, such as "
                "torch.where, torch.cat or x = x * 2"
            )

    def _functional(self, func: Any, args: Any) -> tuple[Any, tuple[Any, ...]]:
        if func in _SPECIAL:
            call, arguments = _SPECIAL[func]
            return call, arguments(*args)
        packet, _, overload = func._schema.name.removeprefix("aten::"), "", func._overloadname
        plain = getattr(aten, packet.removesuffix("_"), None)
        found = plain and getattr(plain, overload, None)
        if found is None or found is func:
            raise self._recorder.refused(
                f"{func} writes into a tensor, and has no form without that: use another operator"
            )
        return found, args

    def _replace(self, target: Traced, new: Traced) -> None:
        """All that lie there have the new value; the memory stays that of the target."""
        for other in list(target.memory.tensors):
            other.value = new.value
