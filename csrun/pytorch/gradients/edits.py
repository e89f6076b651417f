"""Edits of gradients between `backward()` and `optimizer.step()`.

Edits equal to those of the previous step cost one comparison per call. Other edits are recorded
after the backward pass of step 1, and define a separate variant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import RecordedOperator, Recording, Ref, ancestors
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Slot, StepOutputs
from csrun.pytorch.step.tokens import Token


@dataclass(frozen=True)
class ParameterGradient:
    """The gradient of a parameter, among the arguments of an edit."""

    name: str


@dataclass(frozen=True)
class EditResult:
    """Result `leaf` of edit `edit` of a step."""

    edit: int
    leaf: int


Target = ParameterGradient | EditResult  # arguments that an edit may write
FIRST = -1


class Edit:
    """A call on gradients.

    Its arguments have an ParameterGradient for each parameter's gradient, a Place for each result
    of an edit, and a Slot for each value of the step.

    value: its result; None if that is argument `target`, or the list that is the first argument
        (FIRST).
    sources: edits of its Places.
    written: arguments that it writes.
    is_written: a later edit has written its result.
    is_view: its result shares the memory of an argument.
    """

    __slots__ = (
        "args",
        "func",
        "is_view",
        "is_written",
        "kwargs",
        "leaves",
        "line",
        "sources",
        "target",
        "value",
        "written",
    )

    def __init__(
        self, func: Any, args: Any, kwargs: Any, value: Any, target: int | None, line: str
    ) -> None:
        self.sources: dict[int, Edit] = {}
        self.written: tuple[Target, ...] = ()
        self.is_written = self.is_view = False
        self.func, self.args, self.kwargs = func, args, kwargs
        self.leaves = leaves_of(args, kwargs)
        self.value, self.target, self.line = value, target, line

    def result(self, leaf: int) -> Any:
        """Return one of its results."""
        return self.value if isinstance(self.value, torch.Tensor) else tree_leaves(self.value)[leaf]


class Edits:
    """Edits of a step, compared with those of the previous step."""

    def __init__(self) -> None:
        self.all: list[Edit] = []
        self._kept = self._written = EMPTY_EDITS
        self._made = 0
        self._is_other = self._is_known = False
        self.step: StepOutputs | None = None

    def begin(self, step: StepOutputs) -> None:
        """Begin the edits of another step."""
        self._made, self._is_other, self.step = 0, False, step
        self._written = EMPTY_EDITS

    def end(self, assigned: dict[str, EditResult | None]) -> "StepEdits":
        """Return all edits of the step: the same object while steps make the same ones.

        assigned: places assigned to parameters' gradients; None for a removed gradient.
        """
        if self._is_other or self._made != len(self.all) or assigned != self._kept.assigned:
            del self.all[self._made :]
            self._kept = StepEdits(tuple(self.all), assigned)
        self._is_known = True
        return self._kept

    def so_far(self, assigned: dict[str, EditResult | None]) -> "StepEdits":
        """Return all edits of the previous step while this one makes the same; else those so
        far.
        """
        if self._is_other:
            return StepEdits(tuple(self.all[: self._made]), assigned)
        return self._kept

    def again(self, func: Any, leaves: Sequence[Any], kwargs: Mapping[str, Any]) -> Edit | None:
        """Return the next edit of the previous step if this call is equal."""
        if self._made == len(self.all):
            return None
        edit = self.all[self._made]
        if edit.func != func or len(edit.leaves) != len(leaves) or [*edit.kwargs] != [*kwargs]:
            return None
        for known, leaf in zip(edit.leaves, leaves, strict=True):
            if known is not leaf and not self._is_again(known, leaf):
                return None
        self._made += 1
        return edit

    def _is_again(self, known: Any, leaf: Any) -> bool:
        if type(known) is ParameterGradient:
            return getattr(leaf, "of", None) is known
        if type(known) is EditResult:
            return self.all[known.edit].result(known.leaf) is leaf
        if type(known) is Snapshot:
            return known.is_still(leaf)
        if type(known) is Slot:
            return isinstance(leaf, Token) and leaf.slot is known and leaf.step is self.step
        if isinstance(known, torch.Tensor) or isinstance(leaf, torch.Tensor):
            return False
        return type(known) is type(leaf) and bool(known == leaf)

    @property
    def are_written(self) -> bool:
        """True if an edit of the step so far writes."""
        return any(edit.written for edit in self.made)

    @property
    def may_be_others(self) -> bool:
        """True if the step has edits that the previous step does not have, or if those are
        unknown.
        """
        return self._is_other or not self._is_known

    def forget(self) -> None:
        """Drop the edits of a step that was recorded after some of them."""
        self.all, self._kept, self._made, self._is_known = [], EMPTY_EDITS, 0, False

    @property
    def made(self) -> Sequence[Edit]:
        """The edits of the step so far."""
        return self.all[: self._made]

    def up_to_last_write(self, assigned: dict[str, EditResult | None]) -> "StepEdits":
        """Return `so_far` without trailing edits that only read; the same object until another
        write.
        """
        if not self._is_other:
            return self._kept
        last = max((n for n, each in enumerate(self.made) if each.written), default=-1)
        written = self._made if assigned else last + 1
        if len(self._written.all) != written or self._written.assigned != assigned:
            self._written = StepEdits(tuple(self.all[:written]), assigned)
        return self._written

    def add(self, edit: Edit) -> None:
        """Add an edit that differs from the previous step."""
        del self.all[self._made :]
        places = (leaf for leaf in edit.leaves if isinstance(leaf, EditResult))
        edit.sources = {place.edit: self.all[place.edit] for place in places}
        self.all.append(edit)
        self._made, self._is_other = len(self.all), True

    def place_of(self, result: Any) -> EditResult | None:
        """Return the place of a result of this step's edits, or None."""
        for number in reversed(range(self._made)):
            for leaf, value in enumerate(tree_leaves(self.all[number].value)):
                if value is result:
                    return EditResult(number, leaf)
        return None


@dataclass(frozen=True, eq=False)
class StepEdits:
    """All edits of a step."""

    all: tuple[Edit, ...]
    assigned: Mapping[str, EditResult | None] = field(default_factory=dict)

    def is_same(self, other: "StepEdits") -> bool:
        """True if another step makes the same edits."""
        return (
            self.assigned == other.assigned
            and len(self.all) == len(other.all)
            and all(map(_is_same, self.all, other.all))
        )

    @property
    def are_written(self) -> bool:
        """True if they change a gradient."""
        return bool(self.assigned) or any(edit.written for edit in self.all)

    @property
    def line(self) -> str | None:
        """Line of the first edit."""
        return self.all[0].line if self.all else None

    def recorded(
        self, recorder: StepRecorder, recording: Recording
    ) -> tuple[Recording, list[list[Any]]]:
        """Return a recording with these edits in place of its own, and the results of each edit.

        recorder: in its state after that recording's backward().

        Raises: CaptureError, with the user's line, for an edit that cannot be recorded
        """
        of: dict[str, Any] = {
            name: recorder.trace_ref(ref) for name, ref in recording.first_gradients.items()
        }
        results: list[list[Any]] = []

        def traced(leaf: Any) -> Any:
            if isinstance(leaf, EditResult):
                return results[leaf.edit][leaf.leaf]
            if isinstance(leaf, Snapshot):
                return leaf.tensor
            if isinstance(leaf, Slot):
                return recorder.trace_ref(leaf.value)
            return of[leaf.name] if isinstance(leaf, ParameterGradient) else leaf

        with recorder, torch.no_grad():
            for edit in self.all:
                recorder.scopes.set_place(("", edit.line))
                args, kwargs = tree_map(traced, (edit.args, edit.kwargs))
                results.append(tree_leaves(call_for_user(edit.func, args, kwargs)))
            for name, place in self.assigned.items():
                of[name] = None if place is None else results[place.edit][place.leaf]
        gradients = {n: g.value for n, g in of.items() if isinstance(g, TracedTensor)}
        edited = replace(
            recording,
            operators=tuple(recorder.operators),
            kinds=tuple(recorder.kinds),
            leaves=tuple(recorder.leaves),
            gradients=gradients,
        )
        return edited, results


EMPTY_EDITS = StepEdits(())


def _is_same(one: Edit, other: Edit) -> bool:
    (mine, spec), (theirs, other_spec) = (tree_flatten((e.args, e.kwargs)) for e in (one, other))
    return (
        one.func == other.func
        and spec == other_spec
        and all(
            a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor) and a == b)
            for a, b in zip(mine, theirs, strict=True)
        )
    )


def without_dead_edits(recording: Recording, wanted: Sequence[Ref]) -> Recording:
    """Return the recording without edits that no wanted value depends on."""
    needed = ancestors(recording, wanted)
    kept = tuple(
        op
        for number, op in enumerate(recording.operators)
        if number < recording.backward_end or any(r in needed for r in op.results)
    )
    return replace(recording, operators=kept)


def with_edits_of(recording: Recording, other: Recording) -> Recording | None:
    """Return a recording with the edits of another one, which is otherwise equal.

    None if those edits use more than gradients and numbers.
    """
    first = other.first_gradients
    needed = ancestors(other, list(other.gradients.values()), set(first.values()))
    edits = [o for o in other.operators[other.backward_end :] if not needed.isdisjoint(o.results)]
    own = {ref: recording.first_gradients[name] for name, ref in first.items()}
    kinds = list(recording.kinds)
    for ref in (r for op in edits for r in op.results if r is not None):
        own[ref] = Ref(len(kinds))
        kinds.append(other.kind(ref))
    if not all(ref in own for op in edits for ref in op.operands):
        return None

    def moved(op: RecordedOperator) -> RecordedOperator:
        variants = {"arguments": op.arguments, "keywords": dict(op.keywords), "results": op.results}
        found: dict[str, Any] = tree_map(lambda x: own[x] if isinstance(x, Ref) else x, variants)
        return replace(op, **found)

    return replace(
        recording,
        operators=(*recording.operators, *map(moved, edits)),
        kinds=tuple(kinds),
        gradients={name: own[ref] for name, ref in other.gradients.items()},
    )
