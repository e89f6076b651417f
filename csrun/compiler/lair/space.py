"""Mapping of an operator's iteration space to a loop over rows.

A loop merges the leading axes of a space into one axis of rows: [B, T, D] has B rows or B T, if all
arrays can be viewed so. An operand has all rows, or none, or is periodic, i.e. its rows repeat.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.model import InputOp
from csrun.cirh.ops.shape import VIEWS, ViewOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.view_ops import base_of
from csrun.compiler.lair.operators import Shape, operands_of, reduced_axes, space_of


@dataclass(frozen=True)
class Space:
    """Iteration space of an operator whose first `leading` axes are the rows.

    summed: axes over which it sums.
    out: shape of its result.
    """

    shape: Shape
    leading: int
    summed: tuple[int, ...]
    out: Shape

    @classmethod
    def of(cls, op: Operation, leading: int) -> "Space":
        return cls(space_of(op), leading, reduced_axes(op), shape_of(type_of(op.results[0])))

    @property
    def rows(self) -> int:
        """Number of rows of the loop; 0 for scalars."""
        return prod(self.shape[: self.leading]) if self.leading else 0

    @property
    def rowed(self) -> Shape:
        """The space with one axis of rows."""
        return (self.rows, *self.shape[self.leading :]) if self.leading else self.shape

    @property
    def summed_rowed(self) -> tuple[int, ...]:
        """The axes of `rowed` over which it sums."""
        if not self.leading:
            return self.summed
        inner = tuple(d - self.leading + 1 for d in self.summed if d >= self.leading)
        return ((0,) if self.sums_rows else ()) + inner

    @property
    def sums_rows(self) -> bool:
        """Return whether its result is only complete after the last row."""
        return any(d < self.leading for d in self.summed)

    @property
    def period(self) -> int:
        """Number of rows of the result of a sum over the first of the leading axes."""
        return prod(n for d, n in enumerate(self.shape[: self.leading]) if d not in self.summed)

    def rows_of(self, own: Shape) -> int | None:
        """Return the rows of an operand of this shape: all, 0 for none; None if it is not by
        rows.
        """
        missing = len(self.shape) - len(own)
        lead = ((1,) * missing + own)[: self.leading]
        if lead == self.shape[: self.leading]:
            return self.rows
        at = next((d for d, n in enumerate(lead) if n != 1), self.leading)
        if lead[at:] != self.shape[at : self.leading]:
            return None
        return prod(lead[at:]) if at < self.leading else 0

    def operand(self, own: Shape) -> Shape:
        """Return the shape of an operand with one axis of rows, or without rows."""
        rows = self.rows_of(own)
        assert rows is not None, "visited before"
        tail = own[max(self.leading - len(self.shape) + len(own), 0) :]
        return (rows, *tail) if rows and self.leading else tail

    @property
    def result(self) -> Shape:
        """Return the shape of the result with one axis of rows; a kept axis of summed rows has size
        1.
        """
        if not self.leading:
            return self.out
        if not self.sums_rows:
            return (self.rows, *self.out[self.leading :])
        if self.period > 1:
            return (self.period, *self.shape[self.leading :])
        keeps = len(self.out) == len(self.shape)
        return (1, *self.out[self.leading :]) if keeps else self.out[self._kept_leading :]

    @property
    def _kept_leading(self) -> int:
        """Number of leading axes that a sum keeps, each of size 1."""
        return sum(d not in self.summed for d in range(self.leading))

    @property
    def is_summed_by_rows(self) -> bool:
        """Return whether a loop can compute the sum: over all rows, their first axes, or none."""
        leading = [d for d in self.summed if d < self.leading]
        if not leading or self.period == 1:
            return True
        return leading == list(range(len(leading))) == list(self.summed)


def loops_of(op: Operation, graph: Graph) -> dict[int, int]:
    """Return the numbers of rows that a loop over an operator may have, each with its leading
    axes.
    """
    shape = space_of(op)
    if not prod(shape) or not shape:
        return {shape[0]: 1} if shape and shape[0] else {0: 0}
    found: dict[int, int] = {}
    for leading in range(1, len(shape) + 1):
        space = Space.of(op, leading)
        if space.is_summed_by_rows and all(
            _has_rows(value, own, graph) for value, own in _views(op, space, graph)
        ):
            found.setdefault(space.rows, leading)
    return found


def _views(op: Operation, space: Space, graph: Graph) -> Iterator[tuple[SSAValue, Shape | None]]:
    """Return the arrays of an operator, and their views with an axis of rows."""
    yield op.results[0], space.result
    for value in operands_of(op):
        if graph.number(value) is None:
            own = shape_of(type_of(value))
            rows = space.rows_of(own)
            # Tiles of an input are cut in the loop, where rows do not repeat.
            is_known = rows is not None and not (
                0 < rows < space.rows and isinstance(base_of(value).owner, InputOp)
            )
            yield value, space.operand(own) if is_known else None


def _has_rows(value: SSAValue, shape: Shape | None, graph: Graph) -> bool:
    """Return whether an array can be viewed with this shape; with one leading axis each can."""
    return shape is not None and graph.placed(value).reshaped(shape) is not None


def is_read_by_rows(value: SSAValue, reader: Space, producer: Space) -> bool:
    """Return whether each row of a value, or of its view, is complete when a loop reads it."""
    if producer.sums_rows or reader.rows_of(shape_of(type_of(value))) != reader.rows:
        return False
    while isinstance(value.owner, VIEWS):
        if not isinstance(value.owner, ViewOp) or not reader.rows:
            return False
        value = value.owner.x
    return True
