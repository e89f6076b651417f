"""Reads of gradients: the source of the values that the loop computes from them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.gradients.edits import Edit, EditResult, ParameterGradient
from csrun.pytorch.gradients.lazy_gradient import Gradient
from csrun.pytorch.gradients.values import OF_A_SUM, GradientValue, not_returned, refused
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import NORM, Owner, Slot, StepOutputs
from csrun.pytorch.step.tokens import LazyTensor, tensor_of, token_of


class EditingLoop(Owner, Protocol):
    """The loop, as used by gradients."""

    def norm_edit_of(self, step: StepOutputs) -> Edit | None:
        """Return the edit of a step that computes the norm by which all gradients are clipped."""

    @property
    def accumulates(self) -> bool:
        """True if a step may have several batches."""

    def write_weight(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a write of the loop into weights between two steps, by numbers."""


class GradientSet(Protocol):
    """The existing gradients, for reading.

    zeros, zeroed: parameters whose gradient is zero, after `zero_grad()` or set by the loop.
    is_cleared: `zero_grad()` was called since `backward()`.
    step: step of the gradients; None for a sum over batches.
    """

    zeros: frozenset[str]
    zeroed: set[str]
    is_cleared: bool
    step: StepOutputs | None

    def note_read(self) -> None:
        """Note that the loop reads gradients."""


class GradientReads:
    """Values of gradients, and of tensors computed from them.

    loop: computes with values on the host.
    """

    def __init__(self, gradients: GradientSet, loop: EditingLoop) -> None:
        self._gradients, self._loop = gradients, loop
        self._norm_slots: dict[torch.dtype, Slot] = {}

    def tensor_of(self, gradient: Gradient) -> torch.Tensor:
        """Return the numbers of a value.

        Raises: UsageError if they cannot be known
        """
        norm = self.of_norm(gradient)
        if norm is not None:
            return norm.tensor()
        value = self.value_of(gradient)
        self._gradients.note_read()
        if value.step is None:
            return value.compute()
        return self._loop.readback.of_gradients(value.step, value.compute)

    def of_norm(self, gradient: Gradient) -> LazyTensor | None:
        """Return the lazy number of a value computed from the norm by which the wafer clips."""
        edit, step = gradient.edit, gradient.step
        norm = None if edit is None or step is None else self._loop.norm_edit_of(step)
        if edit is None or step is None or norm is None:
            return None
        waiting = [edit]
        while waiting:
            each = waiting.pop()
            if each is norm:
                continue
            if each.is_written or any(isinstance(leaf, ParameterGradient) for leaf in each.leaves):
                return None
            waiting += each.sources.values()
        found: LazyTensor = tree_leaves(self._computed(edit, norm, step))[gradient.leaf]
        return found

    def value_of(self, gradient: Gradient) -> GradientValue:
        """Return the computation of a value.

        Raises: UsageError if it cannot be known
        """
        if gradient.value is not None:
            return gradient.value
        if gradient.of is not None:
            return self._value_of_parameter(gradient, gradient.of.name)
        edit, step = gradient.edit, gradient.step
        if edit is None or step is None:
            raise not_returned()
        if step.gradients is None:
            raise refused(OF_A_SUM)
        return GradientValue(step, partial(step.gradients.of_edit, edit, gradient.leaf))

    def _value_of_parameter(self, gradient: Gradient, name: str) -> GradientValue:
        now = self._gradients
        if name in (now.zeros if now.is_cleared else now.zeroed):
            return GradientValue(None, partial(torch.zeros, gradient.shape, dtype=gradient.dtype))
        if now.is_cleared:
            raise refused(
                f"after zero_grad() has set that of {name} to None: read it before zero_grad()"
            )
        if now.step is None or now.step.gradients is None:
            raise refused(OF_A_SUM)
        return GradientValue(now.step, partial(now.step.gradients.of_parameter, name))

    def _computed(self, edit: Edit, norm: Edit, step: StepOutputs) -> Any:
        """Return the lazy result of an edit of a step, computed from the norm of edit `norm`."""
        if edit is norm:
            return token_of(self._loop, step, self.norm_slot(edit.value.dtype))

        def number(leaf: Any) -> Any:
            if isinstance(leaf, EditResult):
                found = self._computed(edit.sources[leaf.edit], norm, step)
                return tree_leaves(found)[leaf.leaf]
            if isinstance(leaf, Slot):
                return token_of(self._loop, step, leaf)
            return leaf.tensor if isinstance(leaf, Snapshot) else leaf

        args, kwargs = tree_map(number, (edit.args, edit.kwargs))
        return edit.func(*args, **kwargs)

    def norm_in(self, step: StepOutputs) -> tuple[Edit, Callable[[], torch.Tensor]] | None:
        """Return the edit of a step that computes the norm by which the wafer clips."""
        edit = None if self._loop.accumulates else self._loop.norm_edit_of(step)
        if edit is None:
            return None
        return edit, partial(self.number_in, step, self.norm_slot(edit.value.dtype))

    def number_in(self, step: StepOutputs, slot: Slot) -> torch.Tensor:
        """Return an output of a step."""
        return self._loop.readback.read(step, slot)

    def norm_slot(self, dtype: torch.dtype) -> Slot:
        """Return the slot of the gradients' norm, for an element type."""
        if dtype not in self._norm_slots:
            self._norm_slots[dtype] = Slot(NORM, torch.empty((), dtype=dtype, device="meta"))
        return self._norm_slots[dtype]

    def numbers_in(self, args: Any, kwargs: Any) -> Any:
        """Replace values computed from the norm in arguments by lazy numbers.

        None if there are other values of gradients among them.
        """
        if any(isinstance(leaf, Gradient) and leaf.of for leaf in leaves_of(args, kwargs)):
            return None
        found = tree_map(
            lambda a: self.of_norm(a) if isinstance(a, Gradient) else a, (args, kwargs)
        )
        given, made = (tree_leaves(each) for each in ((args, kwargs), found))
        is_missing = (a is not None and b is None for a, b in zip(given, made, strict=True))
        return None if any(is_missing) else found

    def read_in(self, args: Any, kwargs: Any) -> Any:
        """Replace values of gradients in arguments by numbers."""

        def read(leaf: Any) -> Any:
            if not isinstance(leaf, Gradient):
                return leaf
            norm = self.of_norm(leaf)
            return self.tensor_of(leaf) if norm is None else norm

        return tree_map(read, (args, kwargs))

    def write_weight(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Write into weights of the model by values of gradients, after their step."""
        args, kwargs = self.read_in(args, kwargs)
        args, kwargs = tree_map(tensor_of, (args, kwargs))
        return self._loop.write_weight(func, args, kwargs)

    def on_numbers(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a function whose shape or type depends on values."""
        args, kwargs = self.read_in(args, kwargs)
        return func(*args, **kwargs)
