"""Comparison of two recordings of a step, operator by operator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch.utils._pytree import TreeSpec

from csrun.pytorch.record.equal_bits import are_same_values, have_equal_bits
from csrun.pytorch.record.recording import (
    GraphLeaf,
    LeafSource,
    NumberPlace,
    RecordedOperator,
    Recording,
    Ref,
    ancestors,
)

#: Operators of a tensor of floats and a number, which do the same with a tensor without axes.
_TAKE_NUMBERS = frozenset(f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div"))


def difference(
    first: Recording, of: Sequence[Ref], again: Recording, of_again: Sequence[Ref]
) -> str | None:
    """Return the first difference with the user's line, or None.

    of, of_again: values of each recording to compare; others are ignored.
    """
    if is_same(first, of, again, of_again):
        return None
    if first.draws != again.draws:
        line = again.operators[0].line if again.operators else again.loss_line
        return f"{line}: the step draws other random numbers than step 1"
    before, after = _graph_of(first, of), _graph_of(again, of_again)
    for (one, reads), (other, own) in zip(before.operators, after.operators, strict=False):
        if what := _compare_operators(one, other):
            return f"{other.line}: {what}"
        if not reads.is_same(own):
            return f"{other.line}: {other.name} has different arguments than in step 1 ({one.line})"
    if len(before.operators) != len(after.operators):
        longer = max(before.operators, after.operators, key=len)
        op, _ = longer[min(len(before.operators), len(after.operators))]
        is_new = longer is after.operators
        how = "runs here, but not in step 1" if is_new else "ran in step 1, but does not run here"
        return f"{op.line}: {op.name} {how}"
    for leaf, now in zip(before.leaves, after.leaves, strict=True):
        if what := _compare_leaves(leaf, now):
            return what
    return (
        None
        if before.goals == after.goals
        else "the gradients are computed differently than in step 1"
    )


def is_same(first: Recording, of: Sequence[Ref], again: Recording, of_again: Sequence[Ref]) -> bool:
    """Return whether recordings are equal operator by operator, with equal numbering of values.

    A hundred times as fast as `difference`, which may find no difference where this is False.
    """
    return changed_values(first, of, again, of_again) == ChangedValues()


@dataclass(frozen=True)
class ChangedValues:
    """Values of the script that differ between two recordings of the same operators."""

    constants: tuple[GraphLeaf, ...] = ()
    numbers: tuple[NumberPlace, ...] = ()

    def first_line(self, recording: Recording) -> str:
        """Return the user's line of the first of them."""
        lines = [leaf.name for leaf in self.constants]
        return [*lines, *(recording.operators[place.operator].line for place in self.numbers)][0]

    def taken_from(self, recording: Recording) -> Recording:
        """Return a recording in which they are inputs of each step."""
        taken = recording.with_script_tensors({leaf.value for leaf in self.constants})
        return taken.with_script_numbers(self.numbers)


def changed_values(
    first: Recording, of: Sequence[Ref], again: Recording, of_again: Sequence[Ref]
) -> ChangedValues | None:
    """Return the changed values of the script, if the recordings are otherwise equal as in
    `is_same`.

    Inputs of each step in the first one are not compared. None if they differ in more.
    """
    if len(first.operators) != len(again.operators) or list(of) != list(of_again):
        return None
    if first.draws != again.draws:
        return None
    if not all(_takes_number(again, place) for place in first.script_numbers):
        return None
    again = again.with_script_numbers(first.script_numbers)
    are_identical = again.has_operators_of(first)
    leaves, own = first.used_leaves(of), again.used_leaves(of_again)
    known = min(len(first.kinds), len(again.kinds))  # after these come weights that nothing uses
    if first.kinds[:known] != again.kinds[:known]:
        return None
    if [leaf.value for leaf in leaves] != [leaf.value for leaf in own]:
        return None
    numbers: list[NumberPlace] = []
    operators = () if are_identical else zip(first.operators, again.operators, strict=True)
    for index, (one, other) in enumerate(operators):
        if not _is_same_operator(one, other):
            changed = _changed_number(one, other, again)
            if changed is None:
                return None
            numbers.append(NumberPlace(index, changed))
    constants = []
    for leaf, now in zip(leaves, own, strict=True):
        if _compare_leaves(leaf, now) is not None:
            if not leaf.source is now.source is LeafSource.CONSTANT:
                return None
            constants.append(now)
    return ChangedValues(tuple(constants), tuple(numbers))


def counterparts(
    first: Recording, of: Sequence[Ref], again: Recording, of_again: Sequence[Ref]
) -> dict[Ref, GraphLeaf]:
    """Return the leaves of `again` that correspond to the values of `first`.

    Results of the host that programs take are included. There must be no `difference` between the
    recordings.
    """
    before, after = _graph_of(first, of), _graph_of(again, of_again)
    found = {leaf.value: now for leaf, now in zip(before.leaves, after.leaves, strict=True)}
    inputs = zip(first.of(LeafSource.INPUT), again.of(LeafSource.INPUT), strict=True)
    found |= {leaf.value: now for leaf, now in inputs}
    host = zip(first.host_leaves, again.host_leaves, strict=True)  # of the same operators
    return found | {leaf.value: now for leaf, now in host}


def has_other_shapes(first: Recording, again: Recording) -> bool:
    """Return whether both are equal up to a result of the host with another shape."""
    for one, other in zip(first.operators, again.operators, strict=False):
        if not _is_same_operator(one, other):
            shapes = other.keywords.get("shapes")
            is_same = _is_same_operator(one, replace(other, keywords=one.keywords))
            return one.is_of_host and is_same and one.keywords["shapes"] != shapes
    return False


def _changed_number(
    one: RecordedOperator, other: RecordedOperator, recording: Recording
) -> int | None:
    """Return the index of a changed number among the arguments of an operator that accepts a tensor
    there.
    """
    is_same = _is_same_operator(one, replace(other, arguments=one.arguments))
    if not is_same or other.name not in _TAKE_NUMBERS or len(one.arguments) != 2:
        return None
    (left, right), (now, other_right) = one.arguments, other.arguments
    if left != now or not _is_number(right) or not _is_number(other_right):
        return None
    result = other.results[0]
    kinds = [recording.kind(ref) for ref in (now, result) if isinstance(ref, Ref)]
    are_floats = len({kind.dtype for kind in kinds}) == 1 and kinds[0].dtype.is_floating_point
    return 1 if are_floats and len(kinds) == 2 else None


def _takes_number(recording: Recording, place: NumberPlace) -> bool:
    """True if an operator has a number as an argument that may be a tensor."""
    op = recording.operators[place.operator]
    is_known = op.name in _TAKE_NUMBERS and len(op.arguments) == 2 and op.results[0] is not None
    return is_known and _is_number(op.arguments[place.argument])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same_operator(one: RecordedOperator, other: RecordedOperator) -> bool:
    return one is other or (
        one.name == other.name
        and are_same_values(one.arguments, other.arguments)
        and one.results == other.results
        and one.scope == other.scope
        and one.keywords.keys() == other.keywords.keys()
        and are_same_values(tuple(one.keywords.values()), tuple(other.keywords.values()))
    )


class _CanonicalOperands(NamedTuple):
    """Flat arguments of an operator, with values by their numbers in a canonical graph."""

    leaves: tuple[Any, ...]
    spec: TreeSpec

    def is_same(self, other: "_CanonicalOperands") -> bool:
        is_like = self.spec is other.spec or self.spec == other.spec
        return is_like and are_same_values(self.leaves, other.leaves)


class _CanonicalGraph:
    """The part of a recording that some values depend on, with values numbered in order of
    traversal.
    """

    def __init__(self, recording: Recording, of: Sequence[Ref]) -> None:
        self._numbers: dict[Ref, int] = {}
        needed = ancestors(recording, of)
        self.operators = list(self._operators(recording, needed))
        self.leaves = [leaf for leaf in recording.leaves if leaf.value in needed]
        self.leaves.sort(key=lambda leaf: self._number(leaf.value))
        self.goals = [self._number(ref) for ref in of]

    def _operators(
        self, recording: Recording, needed: set[Ref]
    ) -> Iterator[tuple[RecordedOperator, _CanonicalOperands]]:
        for op in recording.operators:
            if any(r in needed for r in op.results):
                leaves, spec = op.flat
                reads = _CanonicalOperands(tuple(map(self._numbered, leaves)), spec)
                for ref in filter(None, op.results):
                    self._number(ref)
                yield op, reads

    def _numbered(self, argument: Any) -> Any:
        return ("value", self._number(argument)) if isinstance(argument, Ref) else argument

    def _number(self, ref: Ref) -> int:
        return self._numbers.setdefault(ref, len(self._numbers))


def _graph_of(recording: Recording, of: Sequence[Ref]) -> _CanonicalGraph:
    """Return the canonical graph of some values, which a recording keeps: a step is compared with
    many others.
    """
    known, goals = recording.canonical_graphs, tuple(of)
    if goals not in known:
        known[goals] = _CanonicalGraph(recording, goals)
    found: _CanonicalGraph = known[goals]
    return found


def _compare_leaves(leaf: GraphLeaf, now: GraphLeaf) -> str | None:
    if leaf.source is LeafSource.SCRIPT and now.source in (leaf.source, LeafSource.CONSTANT):
        if (leaf.tensor.shape, leaf.tensor.dtype) == (now.tensor.shape, now.tensor.dtype):
            return None  # for any numbers
        return f"{now.name}: a tensor of the script has another shape or type than in step 1"
    if (leaf.source, leaf.name) != (
        now.source,
        now.name,
    ) and leaf.source is not LeafSource.CONSTANT:
        return f"{now.source} {now.name} is read where step 1 read {leaf.source} {leaf.name}"
    is_constant = LeafSource.CONSTANT in (leaf.source, now.source)
    if is_constant and not have_equal_bits(leaf.tensor, now.tensor):
        return f"{now.name}: a tensor created here has different values than in step 1"
    return None


def _compare_operators(one: RecordedOperator, other: RecordedOperator) -> str | None:
    if one.name != other.name:
        return f"{other.name} runs where step 1 ran {one.name} ({one.line})"
    if one.scope != other.scope:
        here, there = (f"layer {op.scope}" if op.scope else "no layer" for op in (other, one))
        return f"{other.name} runs in {here}, in step 1 in {there} ({one.line})"
    return None
