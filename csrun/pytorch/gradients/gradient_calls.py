"""Calls of PyTorch's functions on lazy gradients: edits within a step, and functions after it."""

from collections.abc import Callable
from functools import partial
from sys import getrefcount
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.edits import FIRST, Edit, EditResult, Edits, ParameterGradient
from csrun.pytorch.gradients.fake_results import FakeResult, fake_call
from csrun.pytorch.gradients.lazy_gradient import Gradient
from csrun.pytorch.gradients.reads import EditingLoop, GradientReads, GradientSet
from csrun.pytorch.gradients.values import FunctionOfGradients, GradientValue, refused
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_writes import is_write, writes_outside
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Slot, StepOutputs
from csrun.pytorch.step.tokens import LazyTensor, Token

_HELD_BY_EDIT_ALONE = 2  # references counted by sys.getrefcount: the edit's, and its own argument


def _refused_write(func: Any) -> UsageError:
    return UsageError(
        f"{user_line()}: {getattr(func, '__name__', func)} writes values of gradients into a value "
        "of a step after optimizer.step(): compute x = x + y in place of x += y"
    )


class GradientCalls:
    """Calls of the loop on gradients.

    gradients: the existing ones.
    loop: computes with values on the host.
    name_of: as in `Gradients`.
    reads: access to their values.
    edits: edits of the step.
    is_open: the loop is between `backward()` and `optimizer.step()`, where calls are edits.
    """

    def __init__(
        self,
        gradients: GradientSet,
        loop: EditingLoop,
        name_of: Callable[[Any], str | None],
    ) -> None:
        self._gradients, self._name_of = gradients, name_of
        self.reads, self.edits = GradientReads(gradients, loop), Edits()
        self.is_open = False

    def begin(self, step: StepOutputs) -> None:
        """Begin the edits of a step, at `backward()`."""
        self.is_open = True
        self.edits.begin(step)

    def called(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """Return the result of a function of gradients, and record the call."""
        if not self.is_open:
            return self._outside(func, args, kwargs)
        known = self.edits.again(func, leaves, kwargs)
        if known is None:
            return self._new(func, args, kwargs)
        if known.target is not None:
            return args[0] if known.target == FIRST else leaves[known.target]
        if _is_held(known.value):  # from before the call
            known.value = tree_map(self._another, known.value)
            self._set_places(known)
        for leaf in (known.value,) if type(known.value) is Gradient else known.value:
            leaf.step = self.edits.step
        return known.value

    def _new(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, is_of_loops = leaves_of(args, kwargs), writes_outside(func, args)
        if is_of_loops or any(map(self._is_of_loop, leaves)):
            numbers = self.reads.numbers_in(args, kwargs)
            of_parameters = any(isinstance(x, Gradient) and x.of for x in leaves)
            if numbers is None and (is_of_loops or not (is_write(func) or of_parameters)):
                numbers = self.reads.read_in(args, kwargs)
            if numbers is not None:
                return func(*numbers[0], **numbers[1])
        given, options = tree_map(self._given, (args, kwargs))
        found = self._like(func, args, kwargs)
        if found is None:
            return self.reads.on_numbers(func, args, kwargs)
        made = [leaf for leaf in tree_leaves(found.result) if isinstance(leaf, Gradient)]
        if made or found.written:
            self._note(func, (given, options), leaves, found)
        return found.result

    def _note(
        self, func: Any, given: tuple[Any, Any], leaves: list[Any], found: FakeResult
    ) -> None:
        """Record a call as an edit; given: its arguments as edits are compared."""
        target = next((n for n, leaf in enumerate(leaves) if leaf is found.result), None)
        if target is None and found.written and _are_among(found.result, leaves):
            target = FIRST
        value = None if target is not None else found.result
        args, kwargs = given
        edit = Edit(func, args, kwargs, value, target, user_line())
        edit.is_view = found.is_view
        edit.written = tuple(filter(None, map(self._place, found.written)))
        for leaf in found.written:
            if leaf.edit is not None:
                leaf.edit.is_written = True
        self.edits.add(edit)
        self._set_places(edit)

    def _place(self, gradient: Gradient) -> ParameterGradient | EditResult | None:
        return gradient.of or self.edits.place_of(gradient)

    def _set_places(self, edit: Edit) -> None:
        """Set the places of an edit's results."""
        for number, leaf in enumerate(tree_leaves(edit.value)):
            if isinstance(leaf, Gradient):
                leaf.edit, leaf.leaf, leaf.step = edit, number, self.edits.step

    def _is_of_loop(self, leaf: Any) -> bool:
        """True for a value that does not belong to this step."""
        if isinstance(leaf, Gradient):
            return not leaf.of and leaf.step is not self.edits.step
        is_own = isinstance(leaf, Token) and leaf.step is self.edits.step
        return isinstance(leaf, LazyTensor | TracedTensor) and not is_own

    def _given(self, leaf: Any) -> Any:
        """Return an argument of an edit in the form in which edits are compared."""
        if isinstance(leaf, Gradient):
            if leaf.of:
                return leaf.of
            if (place := self.edits.place_of(leaf)) is not None:
                return place
            raise UsageError(
                f"{user_line()}: gradients are edited with a value of an earlier step's gradients: "
                "use values of this step's, or the optimizer's momentum"
            )
        if isinstance(leaf, LazyTensor):
            return self._slot_of(leaf)
        if type(leaf) is torch.Tensor:
            return Snapshot(leaf, self._name_of(leaf))
        return leaf

    def _slot_of(self, value: LazyTensor) -> Slot:
        """Return the slot of a value of this step.

        Raises: UsageError for a value of another step
        """
        if isinstance(value, Token) and value.step is self.edits.step:
            return value.slot
        raise UsageError(
            f"{user_line()}: gradients are edited with a value that the loop computes from values "
            "of steps: use the loss or an output of this step as it is, or a number that does not "
            "depend on steps"
        )

    def _another(self, value: Any) -> Any:
        return Gradient(value, self) if isinstance(value, Gradient) else value

    def _outside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function on gradients outside of backward() and optimizer.step().

        Raises: UsageError if it writes them into a tensor that outlives the step
        """
        if (numbers := self.reads.numbers_in(args, kwargs)) is not None:
            return func(*numbers[0], **numbers[1])
        target = kwargs.get("out", args[0] if args else None)
        if not is_write(func) and "out" not in kwargs:
            return self._function(func, args, kwargs)
        for each in tree_leaves(target):
            if not isinstance(each, Gradient):
                if isinstance(each, LazyTensor | TracedTensor):
                    raise _refused_write(func)
                if self._name_of(each):
                    return self.reads.write_weight(func, args, kwargs)
                return self.reads.on_numbers(func, args, kwargs)
            self._write_outside(func, each)
        return target

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the lazy result of a function, which is computed when it is read."""
        if any(isinstance(x, LazyTensor | TracedTensor) for x in leaves_of(args, kwargs)):
            return self.reads.on_numbers(func, args, kwargs)
        found = self._like(func, args, kwargs)
        if found is None:
            return self.reads.on_numbers(func, args, kwargs)
        for each in found.written:
            self._write_outside(func, each)
        made = [x for x in tree_leaves(found.result) if isinstance(x, Gradient)]
        new = [x for x in made if x.of is None and x.edit is None and x.value is None]
        if new:
            given = tree_map(
                lambda x: self.reads.value_of(x) if isinstance(x, Gradient) else x, (args, kwargs)
            )
            leaves = tree_leaves(found.result)
            values = FunctionOfGradients(func, *given).values(len(leaves))
            for leaf, value in zip(leaves, values, strict=True):
                if isinstance(leaf, Gradient) and any(leaf is x for x in new):
                    leaf.value = value
        return found.result

    def _write_outside(self, func: Any, gradient: Gradient) -> None:
        if gradient.of is None:
            gradient.value, gradient.edit = _WRITTEN, None
            return
        name = gradient.of.name
        if func.__name__ in ("zero_", "_foreach_zero_"):
            self._gradients.zeroed.add(name)
        elif not self._gradients.is_cleared and name not in self._gradients.zeroed:
            raise UsageError(
                f"{user_line()}: {func.__name__} changes the gradient of {name} outside "
                "of backward() and optimizer.step(): edit it between them"
            )

    def _like(self, func: Any, args: Any, kwargs: Any) -> FakeResult | None:
        return fake_call(func, args, kwargs, partial(Gradient, owner=self))


def _refuse_written() -> torch.Tensor:
    raise refused("and it was written after the step: compute x = x * 2 in place of x *= 2")


_WRITTEN = GradientValue(None, _refuse_written)


def _is_held(value: Any) -> bool:
    """True if a result, or a tensor in it, is referenced by more than its edit."""
    if type(value) is Gradient:
        return getrefcount(value) > _HELD_BY_EDIT_ALONE + 1
    is_flat = type(value) in (list, tuple) and all(type(x) is Gradient for x in value)
    if not is_flat or getrefcount(value) > _HELD_BY_EDIT_ALONE + 1:
        return True
    return max(map(getrefcount, value), default=0) > _HELD_BY_EDIT_ALONE


def _are_among(found: Any, leaves: list[Any]) -> bool:
    """True if all tensors in a result are among a function's arguments."""
    known = set(map(id, leaves))
    return all(id(x) in known for x in tree_leaves(found) if isinstance(x, torch.Tensor))
