"""Operands of an operator on rows that a mask of the batch selects, and what a rule returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from csrun.pytorch.record.recording import RecordedOperator, Ref, TensorKind


class NotByRow(Exception):  # noqa: N818  no error: the recording keeps its number of rows
    """An operator that may mix rows, or depends on their number in an unknown way."""


class Masked(NamedTuple):
    """An operand whose padding gets a value: its index in the arguments, and its axis of rows."""

    argument: int
    axis: int
    value: float = 0


@dataclass(frozen=True)
class RuleResult:
    """Effect of padded rows on an operator.

    axes: axis of rows of each result, None for one without rows.
    arguments: of the operator with padded rows.
    masked: operands of a sum over rows.
    divides: rows per selected row of the count that a mean divides by; 0 for none.
    operator: name and function of the operator in its place, if it is another.
    by_count: the count is its second argument.
    """

    axes: tuple[int | None, ...]
    arguments: tuple[Any, ...]
    masked: tuple[Masked, ...] = ()
    divides: int = 0
    operator: tuple[str, Any] | None = None
    by_count: bool = False


@dataclass(frozen=True)
class RowOperands:
    """Operands of an operator, some with rows.

    kinds: of all values, with the number of rows of the recording, `count`.
    axes: axis of rows, by value.
    padded: number of rows with padding.
    """

    op: RecordedOperator
    kinds: Sequence[TensorKind]
    axes: Mapping[Ref, int]
    count: int
    padded: int
    arguments: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", self.op.arguments)

    @property
    def has_rows(self) -> bool:
        """True if an operand has rows."""
        return any(ref in self.axes for ref in self.op.operands)

    @property
    def may_add_rows(self) -> bool:
        """True for a gradient that is expanded to rows, as in the backward pass of a sum."""
        return self.op.is_backward and self.op.name == "aten.expand.default"

    def axis(self, argument: Any) -> int | None:
        """Return the axis of rows of an argument, None if it has none."""
        return self.axes.get(argument) if isinstance(argument, Ref) else None

    def axis_of(self, argument: Any) -> int:
        """Return the axis of rows of an argument. Raises: NotByRow if it has none"""
        axis = self.axis(argument)
        if axis is None:
            raise NotByRow(f"{self.op.line}: {self.op.name}")
        return axis

    def sizes(self, value: Ref) -> tuple[int, ...]:
        return self.kinds[value.number].shape

    @property
    def result(self) -> tuple[int, ...]:
        """Sizes of the first result."""
        assert self.op.results[0] is not None, "it has one"
        return self.sizes(self.op.results[0])

    def arguments_up_to(self, last: int) -> tuple[Any, ...]:
        """Return the arguments, with defaults up to index `last`."""
        call: Any = self.op.call
        declared = call._schema.arguments[len(self.arguments) : last + 1]
        return (*self.arguments, *(each.default_value for each in declared))

    def require(self, holds: bool) -> None:
        """Raises: NotByRow unless it holds"""
        if not holds:
            raise NotByRow(f"{self.op.line}: {self.op.name}")

    def kept(self, axis: int | None, *arguments: Any) -> RuleResult:
        """Return the rule of results that all have the rows on an axis."""
        return RuleResult((axis,) * len(self.op.results), arguments or self.arguments)

    def summed(self, *masked: Masked, arguments: Any = None, divides: int = 0) -> RuleResult:
        """Return the rule of a sum over the rows."""
        return RuleResult(
            (None,) * len(self.op.results), arguments or self.arguments, masked, divides
        )

    def only(self, *with_rows: int) -> None:
        """Raises: NotByRow if other operands than the arguments with these indices have rows"""
        known = {self.arguments[n] for n in with_rows if isinstance(self.arguments[n], Ref)}
        self.require(all(ref in known for ref in self.op.operands if ref in self.axes))


Rule = Callable[[RowOperands], RuleResult]
