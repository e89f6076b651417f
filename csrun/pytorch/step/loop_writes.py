"""Writes of the loop into its own tensors."""

from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.snapshots import PLAIN

_SET_DATA = torch.Tensor.data.__set__
_DETACHING = (torch.Tensor.detach, torch.Tensor.data.__get__)


@lru_cache(maxsize=1024)
def is_write(func: Any) -> bool:
    """True if a function, or an operator of ATen's, writes into its first argument."""
    plain = str(getattr(func, "__name__", "")).partition(".")[0]
    return plain == "__setitem__" or (plain.endswith("_") and not plain.endswith("__"))


def is_of_attributes(func: Any) -> bool:
    """True for a function of a tensor's attributes, which neither reads nor writes its numbers."""
    return getattr(func, "__name__", "") in _OF_ATTRIBUTES


_OF_ATTRIBUTES = frozenset(
    {"__get__", "__set__", "__hash__", "requires_grad_", "size", "dim", "numel"}
)


def result_of(func: Any, args: tuple[Any, ...], results: Any) -> Any:
    """Return the results of a call; for `x[i] = y`, which gives none, what it writes into."""
    return args[0] if results is None and is_write(func) else results


def writes_outside(func: Any, args: tuple[Any, ...]) -> bool:
    """True if a function writes into a tensor of the loop's own, or sets its `.data`."""
    if not args:
        return False
    if func == _SET_DATA:
        return type(args[0]) in PLAIN
    return is_write(func) and type(args[0]) is torch.Tensor


class UntrackedWrites:
    """Tensors of the loop whose values autograd does not track, although it would in PyTorch.

    lines: of the user's code that have written values of the step into them.
    """

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self._line_of: Any = WeakTensorKeyDictionary()

    def note(self, target: torch.Tensor) -> None:
        """Record a write into a tensor, or into a view of one."""
        line = user_line()
        self.lines.add(line)
        self._line_of[target if target._base is None else target._base] = line

    def check(self, func: Any, leaves: list[Any], results: Any) -> None:
        """Note results of a function of such tensors, which autograd would also track.

        Raises: UsageError if they belong to the loss
        """
        if not self.lines or not torch.is_grad_enabled() or func in _DETACHING:
            return
        if (line := self._line_in(leaves)) is None:
            return
        for made in tree_leaves(results):
            if isinstance(made, TracedTensor) and made.requires_grad:
                raise _error(line)
            if type(made) is torch.Tensor and made.is_floating_point():
                self._line_of[made] = line

    def require_none(self, leaves: list[Any]) -> None:
        """Raises: UsageError if such a tensor is among the arguments of `backward()`"""
        if line := self._line_in(leaves):
            raise _error(line)

    def _line_in(self, leaves: list[Any]) -> str | None:
        found = (self._line_of.get(x) for x in leaves if type(x) is torch.Tensor)
        return next(filter(None, found), None)


def _error(line: str) -> UsageError:
    return UsageError(
        f"{line}: the loss is computed in a tensor that was not created in this step: begin with "
        "loss = 0 in each step, or use torch.stack"
    )
