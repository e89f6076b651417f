"""Rows that a mask of the batch selects, padded to one of a few counts.

The number of rows differs from batch to batch. A recording with padded rows serves all numbers up
to its own: the rows after the last one repeat it, and a sum over rows leaves them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import prod
from typing import Any

import torch

from csrun.pytorch.record.host_operators import PLACES, OtherShapesError, places_of
from csrun.pytorch.record.recording import (
    HOST,
    GraphLeaf,
    LeafSource,
    RecordedOperator,
    Recording,
    Ref,
    TensorKind,
)
from csrun.pytorch.record.rows.operands import Masked, NotByRow, RowOperands
from csrun.pytorch.record.rows.row_rules import apply_rule

#: Prefix of the name of an operator that adds up valid rows.
OF_ROWS = "rows::"
PADDED_PLACES = f"{HOST}padded places"


def padded_count(count: int, most: int) -> int:
    """Return the number of rows that `count` of at most `most` rows are padded to.

    These numbers are most, 3/4 of it, 1/2, 3/8 and so on, so at most half of the rows are padding.
    """
    found, factors = most, cycle((3 / 4, 2 / 3))
    while count <= (smaller := -int(-found * next(factors) // 1)) < found:
        found = smaller
    return found


@dataclass(frozen=True)
class PaddedPlaces:
    """Operator of the host: the positions where a mask is true, padded."""

    def __call__(
        self,
        mask: torch.Tensor,
        *,
        rows: int,
        counts: Sequence[tuple[int, torch.dtype]],
        shapes: Any,
    ) -> tuple[torch.Tensor, ...]:
        """Return an index for each axis, which rows are valid, and their number, by the factors
        and types of `counts`.

        Shapes: mask any; rows, rows, ...; scalars

        Raises: OtherShapesError for a number of rows that is padded to another one
        """
        places = places_of(mask)
        count = len(places[0])
        if not count or padded_count(count, mask.numel()) != rows:
            raise OtherShapesError
        valid = torch.arange(rows) < count
        last = torch.arange(rows).clamp_max(count - 1)
        numbers = (torch.tensor(count * factor, dtype=dtype) for factor, dtype in counts)
        return (*(place[last] for place in places), valid, *numbers)


@dataclass(frozen=True)
class SumOfRows:
    """An operator that adds up rows, of which padding is left out.

    func: the operator's own function; masked: operands whose padding gets a value first.
    """

    func: Any
    masked: tuple[Masked, ...]

    def __call__(
        self, *args: Any, valid: torch.Tensor, count: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Compute the operator, divided by the count if there is one."""
        given = list(args)
        for each in self.masked:
            x = given[each.argument]
            sizes = [1] * x.dim()
            sizes[each.axis] = -1
            given[each.argument] = torch.where(valid.view(sizes), x, each.value)
        found = self.func(*given, **kwargs)
        return found if count is None else found / count.to(found.dtype)


def plain_operator(op: RecordedOperator) -> RecordedOperator:
    """Return the operator that a sum of rows applies to its masked operands."""
    assert isinstance(op.call, SumOfRows), "it is one"
    own = {name: given for name, given in op.keywords.items() if name not in ("valid", "count")}
    name = op.name.removeprefix(OF_ROWS)
    return replace(op, name=name, call=op.call.func, keywords=own)


def valid_rows_in(recording: Recording) -> Ref:
    """Return the value that says which rows of a recording with padded rows are valid."""
    op = next(op for op in recording.operators if op.name == PADDED_PLACES)
    places = [ref for ref in op.results if ref in recording.row_axes]
    valid = op.results[len(places)]
    assert valid is not None, "it has one"
    return valid


def has_rows_of_mask(recording: Recording) -> bool:
    """True if the program takes positions of a mask, and no other result of the host."""
    made = [op for op in recording.operators if op.is_of_host]
    return bool(recording.host_leaves) and all(op.name == PLACES for op in made)


def padded_rows_of(recording: Recording) -> int:
    """Return the padded number of rows of a recording that has padded rows."""
    op = next(op for op in recording.operators if op.name == PADDED_PLACES)
    rows: int = op.keywords["rows"]
    return rows


def pad_rows(recording: Recording, visible: Sequence[Ref], rows: int | None = None) -> "Recording":
    """Return the recording with padded rows.

    visible: values of the loop, which must not have a padded axis.
    rows: padded number of rows; None for that of this recording's rows.

    Raises: NotByRow if an operator mixes rows other than by a sum, or has no rule
    """
    return _PaddedRecording(recording, rows).result(visible)


class _Rows:
    """Rows of one mask. counts: by factor and type."""

    def __init__(self, count: int, padded: int, valid: Ref) -> None:
        self.count, self.padded, self.valid = count, padded, valid
        self.counts: dict[tuple[int, torch.dtype], Ref] = {}


class _PaddedRecording:
    """A recording on the way to padded rows."""

    def __init__(self, recording: Recording, rows: int | None) -> None:
        self._recording, self._asked = recording, rows
        self._kinds = list(recording.kinds)
        self._axes: dict[Ref, int] = {}  # with rows, by value
        self._rows: _Rows | None = None
        self._mask: Any = None
        self._operators: list[RecordedOperator] = []
        self._hosted: list[int] = []  # operators that select rows

    def result(self, visible: Sequence[Ref]) -> Recording:
        for op in self._recording.operators:
            self._operators.append(self._places(op) if op.is_of_host else self._padded(op))
        if seen := [ref for ref in visible if ref in self._axes]:
            raise NotByRow(f"value {seen[0].number} is the loop's")
        if self._rows is None:
            raise NotByRow("no rows")
        for number in self._hosted:
            self._operators[number] = self._with_counts(self._operators[number])
        return replace(
            self._recording,
            operators=tuple(self._operators),
            kinds=tuple(self._kinds),
            host_leaves=self._leaves(),
            row_axes=self._axes,
        )

    # The host's operators.

    def _places(self, op: RecordedOperator) -> RecordedOperator:
        """Return the operator that pads the positions of a mask."""
        (mask,), made = op.arguments, [ref for ref in op.results if ref is not None]
        count, most = self._kinds[made[0].number].shape[0], _size(self._kinds[mask.number])
        padded = self._asked or padded_count(count, most)
        if not 0 < count <= most or padded > most:
            raise NotByRow("no row is selected")
        key = self._key(mask)
        if self._rows is None:
            self._rows, self._mask = _Rows(count, padded, self._add((padded,), torch.bool)), key
        elif key != self._mask:
            raise NotByRow("rows of two masks")
        for ref in made:
            self._set_axis(ref, 0)
        self._hosted.append(len(self._operators))
        return replace(op, name=PADDED_PLACES, call=PaddedPlaces())

    def _with_counts(self, op: RecordedOperator) -> RecordedOperator:
        """Return a padding operator; the first one also gives the counts."""
        rows = self._rows
        assert rows is not None, "it selects rows"
        is_first = op is self._operators[self._hosted[0]]
        counts = tuple(rows.counts) if is_first else ()
        valid = rows.valid if is_first else self._add((rows.padded,), torch.bool)
        results = (*op.results, valid, *(rows.counts[each] for each in counts))
        shapes = tuple(self._kinds[ref.number].shape for ref in results if ref is not None)
        keywords = {"rows": rows.padded, "counts": counts, "shapes": shapes}
        return replace(op, results=results, keywords=keywords)

    def _leaves(self) -> tuple[GraphLeaf, ...]:
        """Return the results of the host that the program takes, with their numbers."""
        known, rows, found = self._recording.host_leaves, self._rows, []
        assert rows is not None, "rows are selected"
        line = self._operators[self._hosted[0]].line
        last = torch.arange(rows.padded).clamp_max(rows.count - 1)
        for leaf in known:
            found.append(replace(leaf, tensor=leaf.tensor[last]))
        made = {rows.valid: torch.arange(rows.padded) < rows.count}
        for (factor, dtype), ref in rows.counts.items():
            made[ref] = torch.tensor(rows.count * factor, dtype=dtype)
        found += [GraphLeaf(ref, LeafSource.SCRIPT, line, numbers) for ref, numbers in made.items()]
        return tuple(found)

    def _key(self, ref: Ref) -> Any:
        """Return the computation of a value, by which equal masks are found."""
        op = self._recording.maker.get(ref)
        if op is None:
            return ref
        read = [self._key(x) if isinstance(x, Ref) else x for x in op.arguments]
        return op.name, op.results.index(ref), str(read), str(dict(op.keywords))

    # Other operators.

    def _padded(self, op: RecordedOperator) -> RecordedOperator:
        rows = self._rows
        if rows is None:
            return op
        operands = RowOperands(op, self._recording.kinds, self._axes, rows.count, rows.padded)
        if not operands.has_rows and not operands.may_add_rows:
            return op
        found = apply_rule(operands)
        for ref, axis in zip(op.results, found.axes, strict=False):
            if ref is not None and axis is not None:
                self._set_axis(ref, axis)
        padded = replace(op, arguments=found.arguments)
        if found.operator is not None:
            padded = replace(padded, name=found.operator[0], call=found.operator[1])
        if not found.divides:
            return self._sum(padded, found.masked, {}) if found.masked else padded
        result = padded.results[0]
        assert result is not None, "it divides"
        count = self._count(found.divides, self._kinds[result.number].dtype)
        if found.by_count:
            return replace(padded, arguments=(padded.arguments[0], count))
        return self._sum(padded, found.masked, {"count": count})

    def _sum(
        self, op: RecordedOperator, masked: tuple[Masked, ...], count: Mapping[str, Ref]
    ) -> RecordedOperator:
        assert self._rows is not None, "it adds them up"
        keywords = {**op.keywords, "valid": self._rows.valid, **count}
        call = SumOfRows(op.call, masked)
        return replace(op, name=f"{OF_ROWS}{op.name}", call=call, keywords=keywords)

    def _count(self, factor: int, dtype: torch.dtype) -> Ref:
        assert self._rows is not None, "they are counted"
        counts = self._rows.counts
        if (factor, dtype) not in counts:
            counts[factor, dtype] = self._add((), dtype)
        return counts[factor, dtype]

    def _set_axis(self, ref: Ref, axis: int) -> None:
        rows, kind = self._rows, self._kinds[ref.number]
        assert rows is not None, "it has rows"
        if kind.shape[axis] != rows.count:
            raise NotByRow("an axis of another size")
        sizes = (*kind.shape[:axis], rows.padded, *kind.shape[axis + 1 :])
        self._kinds[ref.number] = replace(kind, shape=sizes)
        self._axes[ref] = axis

    def _add(self, sizes: tuple[int, ...], dtype: torch.dtype) -> Ref:
        self._kinds.append(TensorKind(sizes, dtype))
        return Ref.of(len(self._kinds) - 1)


def _size(kind: TensorKind) -> int:
    return prod(kind.shape)
