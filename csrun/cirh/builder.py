"""Builder of operators, each with the type that follows from its operands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import LocationAttr, UnknownLoc
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.ops.model import FullOp, LeafOp
from csrun.cirh.types import Tensor


class Builder:
    """Inserts operators at one position of a block, in the current name scope.

    `locate` gives each operator its position in the user's files, which is not part of the module's
    text.
    """

    def __init__(
        self, place: InsertPoint, scope: str = "", locate: Callable[[], LocationAttr] = UnknownLoc
    ) -> None:
        self._place = place
        self.scope = scope
        self.locate = locate

    def emit(self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain) -> SSAValue:
        """Insert an operator and return its result.

        Raises: VerifyException if the operands do not fit
        """
        return self.effect(kind, *operands, **properties).results[0]

    def emit_all(
        self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain
    ) -> tuple[SSAValue, ...]:
        """Insert an operator and return all its results."""
        return tuple(self.effect(kind, *operands, **properties).results)

    def effect(self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain) -> Operation:
        """Insert an operator that may have no result."""
        return self._insert(kind.of(operands, **self._scoped(properties)))

    def leaf(self, kind: type[LeafOp], declared: Tensor, **properties: Plain) -> SSAValue:
        """Insert an operator without operands, of a declared type."""
        op = kind.declare(declared, **self._scoped(properties))
        return self._insert(op).results[0]

    def full(self, value: float, kind: Tensor) -> SSAValue:
        """Return a tensor filled with one value."""
        return self.leaf(FullOp, kind, value=float(value))

    @contextmanager
    def in_scope(self, scope: str) -> Iterator[None]:
        """Context manager in which operators have this scope."""
        outer, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = outer

    def _scoped(self, properties: dict[str, Plain]) -> dict[str, Plain]:
        return {"scope": self.scope, **properties} if self.scope else properties

    def _insert(self, op: Operation) -> Operation:
        op.location = self.locate()
        Rewriter.insert_op(op, self._place)
        return op
