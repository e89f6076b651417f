"""Values of one step's gradients, computed by PyTorch on the host when the loop reads them.

A step's program returns gradients as `backward()` leaves them. The loop's edits are repeated here
on the values that a read needs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ReferenceType

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.gradients.edits import Edit, EditResult, ParameterGradient, Target
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Slot, StepOutputs


class GradientReadError(UsageError):
    """A value of the gradients is read that cannot be known."""


def refused(why: str) -> GradientReadError:
    """Return the error for a value of the gradients; why: reason and remedy."""
    return GradientReadError(f"{user_line()}: a number of the gradients is read, {why}")


def not_returned() -> GradientReadError:
    """Return the error for a value that no program returns."""
    return refused(
        "which no program returns: read parameter.grad, or a function of it, between backward() "
        "and the next batch"
    )


OF_A_SUM = (
    "and they are the sum of several batches, which the wafer accumulates: read the gradients of "
    "the first batch of a step, or the norm that clip_grad_norm_ returns"
)
_THROUGH_VIEWS = (
    "and they were edited through views: edit parameter.grad itself, or read them before the edit"
)
_BY_WEIGHTS = (
    "and they were edited by weights, which are on the wafer: read them before they are edited"
)


@dataclass(frozen=True, eq=False)
class GradientValue:
    """Value computed from gradients.

    step: step of the gradients; None if they are zeros.
    of: function that returns it, if called after the step.
    """

    step: StepOutputs | None
    compute: Callable[[], torch.Tensor]
    of: "FunctionOfGradients | None" = None


@dataclass(eq=False)
class EditHistory:
    """Edits of a step that reads have seen, and values that they have computed.

    places: index of each edit, by id.
    writes: indices of the edits that write a value.
    shared: values that have views.
    first_shared_write: first edit that writes a shared value.
    """

    edits: list[Edit] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    writes: dict[Target, list[int]] = field(default_factory=lambda: defaultdict(list))
    shared: set[Target] = field(default_factory=set)
    first_shared_write: int | None = None
    known: dict[tuple[Target, int], torch.Tensor] = field(default_factory=dict)

    def extend(self, made: Sequence[Edit]) -> None:
        """Read the edits that the loop has made since the last read."""
        for number in range(len(self.edits), len(made)):
            edit = made[number]
            self.edits.append(edit)
            self.places[id(edit)] = number
            for target in edit.written:
                self.writes[target].append(number)
                if target in self.shared and self.first_shared_write is None:
                    self.first_shared_write = number
            if edit.is_view:
                self.shared.update(each for each in edit.leaves if isinstance(each, Target))
                results = range(len(tree_leaves(edit.value)))
                self.shared.update(EditResult(number, leaf) for leaf in results)

    def last_write(self, what: Target, before: int) -> int:
        """Return the last edit before that one which writes a value, or -1."""
        return next((n for n in reversed(self.writes.get(what, ())) if n < before), -1)


@dataclass(eq=False)
class StepGradients:
    """Gradients of one step, through the edits that the loop makes.

    step: refers to this object.
    first: returns a parameter's gradient as `backward()` has left it.
    made: returns the edits so far, until those of the step are known.
    norm_in: returns the edit of a step that computes the norm by which the wafer clips, and a
        function that returns the norm; None if there is none.
    number_in: returns an output of a step.
    """

    step: ReferenceType[StepOutputs]
    first: Callable[[str], torch.Tensor]
    made: Callable[[], Sequence[Edit]]
    norm_in: Callable[[StepOutputs], tuple[Edit, Callable[[], torch.Tensor]] | None]
    number_in: Callable[[StepOutputs, Slot], torch.Tensor]
    _history: EditHistory = field(default_factory=EditHistory)

    @property
    def _outputs(self) -> StepOutputs:
        outputs = self.step()
        assert outputs is not None, "the step is alive while its gradients are read"
        return outputs

    def of_parameter(self, name: str) -> torch.Tensor:
        """Return a parameter's current gradient."""
        return self._now(ParameterGradient(name))

    def of_edit(self, edit: Edit, leaf: int) -> torch.Tensor:
        """Return the current result of an edit."""
        place = self._so_far().places.get(id(edit))
        if place is None:  # the value of another step, at the end of that step
            raise not_returned()
        return self._now(EditResult(place, leaf))

    def _now(self, what: Target) -> torch.Tensor:
        history = self._so_far()
        now = len(history.edits)
        if history.first_shared_write is not None:
            raise refused(_THROUGH_VIEWS)
        with torch.no_grad(), unrecorded(), on_one_thread():
            for number in self._needed(history, what):
                (self._write if history.edits[number].written else self._compute)(history, number)
            return self._after(history, now, what).clone()

    def _needed(self, history: EditHistory, what: Target) -> list[int]:
        """Return the edits to repeat for a value, in order."""
        norm, needed = self.norm_in(self._outputs), set[int]()
        waiting = [(what, len(history.edits))]
        while waiting:
            each, before = waiting.pop()
            last = history.last_write(each, before)
            if last < 0 and isinstance(each, ParameterGradient):
                continue
            number = last if last >= 0 or isinstance(each, ParameterGradient) else each.edit
            if number in needed or (each, last) in history.known:
                continue
            needed.add(number)
            edit = history.edits[number]
            if norm is None or norm[0] is not edit:
                waiting += [(leaf, number) for leaf in edit.leaves if isinstance(leaf, Target)]
        return sorted(needed)

    def _so_far(self) -> EditHistory:
        """Return the history with all edits that the loop has made."""
        edits = self._outputs.edits
        self._history.extend(self.made() if edits is None else edits)
        return self._history

    def _after(self, history: EditHistory, edits: int, what: Target) -> torch.Tensor:
        """Return a value after this many edits, after repeating those that it needs."""
        last, known = history.last_write(what, edits), history.known
        if last < 0 and isinstance(what, ParameterGradient) and (what, last) not in known:
            known[what, last] = self.first(what.name)
        return known[what, last]

    def _compute(self, history: EditHistory, number: int) -> None:
        """Repeat an edit that returns new values."""
        norm, edit = self.norm_in(self._outputs), history.edits[number]
        if norm is not None and norm[0] is edit:
            results = [norm[1]()]
        else:
            args, kwargs = self._arguments(history, number, ())
            results = tree_leaves(call_for_user(edit.func, args, kwargs))
        for leaf, result in enumerate(results):
            history.known[EditResult(number, leaf), -1] = result

    def _write(self, history: EditHistory, number: int) -> None:
        """Repeat an edit that writes, on copies."""
        edit = history.edits[number]
        copies = {target: self._after(history, number, target).clone() for target in edit.written}
        args, kwargs = self._arguments(history, number, copies)
        call_for_user(edit.func, args, kwargs)
        history.known |= {(target, number): copy for target, copy in copies.items()}

    def _arguments(self, history: EditHistory, number: int, copies: Any) -> Any:
        edit = history.edits[number]

        def given(leaf: Any) -> Any:
            if isinstance(leaf, Target):
                return copies[leaf] if leaf in copies else self._after(history, number, leaf)
            if isinstance(leaf, Slot):
                return self.number_in(self._outputs, leaf)
            if isinstance(leaf, Snapshot):
                if leaf.name:
                    raise refused(_BY_WEIGHTS)
                return leaf.tensor
            return leaf

        return tree_map(given, (edit.args, edit.kwargs))


class FunctionOfGradients:
    """Call of a function on gradients after their step, made when a result is read.

    args, kwargs: with a GradientValue for each value of gradients.
    """

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        self._func, self._given = func, tree_map(_as_it_is, (args, kwargs))
        self._results: list[torch.Tensor] | None = None

    def values(self, count: int) -> list[GradientValue]:
        """Return its results."""
        step = next((value.step for value in self._values() if value.step is not None), None)
        return [GradientValue(step, partial(self._result, n), self) for n in range(count)]

    def _values(self) -> Iterator[GradientValue]:
        return (x for x in tree_leaves(self._given) if isinstance(x, GradientValue))

    def _result(self, leaf: int) -> torch.Tensor:
        waiting = [self]
        while waiting:  # a sum over all layers is computed without recursion
            last = waiting[-1]
            made_of = (value.of for value in last._values())
            if more := [of for of in made_of if of is not None and of._results is None]:
                waiting += more
                continue
            last._compute()
            waiting.pop()
        assert self._results is not None, "computed"
        return self._results[leaf].clone()

    def _compute(self) -> None:
        if self._results is not None:  # referenced by two others
            return
        args, kwargs = tree_map(
            lambda x: x.compute() if isinstance(x, GradientValue) else x, self._given
        )
        with torch.no_grad(), unrecorded(), on_one_thread():
            self._results = tree_leaves(call_for_user(self._func, args, kwargs))
        self._given = ()


def _as_it_is(argument: Any) -> Any:
    """Return an argument that later writes of the loop do not change."""
    return argument.detach().clone() if isinstance(argument, torch.Tensor) else argument
