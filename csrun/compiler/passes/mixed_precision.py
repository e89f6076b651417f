"""Mixed precision: insertion of roundings to 16 bits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.base.half_formats import HalfFormat
from csrun.cirh import storage_of
from csrun.cirh.ops.base import ElementwiseOp
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.embedding import EmbeddingOp
from csrun.cirh.ops.half import RoundHalfOp
from csrun.cirh.ops.indexing import GatherOp, IndexSelectOp
from csrun.cirh.ops.learning import AssignOp, UpdatingOp, is_of_update
from csrun.cirh.ops.model import FullOp, InputOp, LeafOp, LossOp, ParameterOp, StateOp
from csrun.cirh.ops.padding import FirstPartOp
from csrun.cirh.ops.products import AddProductOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import VIEWS
from csrun.cirh.types import dtype_of, is_float, shape_of, type_of
from csrun.compiler.graph.labels import label_ranges
from csrun.compiler.graph.view_ops import numbers_of
from csrun.compiler.passes.rewrite import Pass, PassResult
from csrun.compiler.passes.widths import Width, half_results, width_of

#: Operators whose results are numbers of their operand.
_MOVING = (*VIEWS, FirstPartOp)


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Before: any valid module. After: if it has a 16-bit format, a `round_half`

    - of each array that an operator stores in 16 bits (`widths.py`), unless it is only read by one
      elementwise operator or sum of the same pass, is only the next value of a state, or is derived
      from integers,
    - of each value derived from integers, such as the angle of a position, for each reader with a
      16-bit result that is not elementwise and not itself derived from integers,
    - of each gradient, before its update,
    - of each state that a recorded update writes, for all readers outside of the update.

    A value is derived from integers if it depends only on integer inputs, constants and states that
    no step assigns.

    Weights are rounded before they are sent to the wafer. Operators of a recorded update compute in
    float32.
    """

    name: ClassVar[str] = "mixed"

    def apply(self, module: ModuleOp) -> PassResult:
        """Insert them, and count them."""
        kind = storage_of(module)
        if kind is None:
            return PassResult(False)
        rounding = _Rounding(module, kind)
        rounding.run()
        return PassResult(rounding.count > 0, (f"{kind.name}: {rounding.count} roundings",))


class _Rounding:
    def __init__(self, module: ModuleOp, kind: HalfFormat) -> None:
        self._operations = list(module.ops)
        self._numbers = numbers_of(self._operations, label_ranges(self._operations))
        loss = (n for n, op in enumerate(self._operations) if isinstance(op, LossOp))
        self._after_loss = set(self._operations[next(loss, len(self._operations)) :])
        self._kind = kind
        self._rounded: set[SSAValue] = set()
        self._gradients: dict[SSAValue, RoundHalfOp] = {}  # read by recorded updates
        self._integer_derived = _integer_derived_values(self._operations)
        self._operands: dict[SSAValue, RoundHalfOp] = {}  # of these, read by other operators
        self.count = 0

    def run(self) -> None:
        computed = [op for op in self._operations if not is_of_update(op)]
        for op in computed:
            # weights are sent to the wafer rounded
            for result in () if isinstance(op, ParameterOp) else op.results[: half_results(op)]:
                if result not in self._integer_derived and self._is_stored(result):
                    self._round(result)
        for op in computed:
            if _stores_operands(op) and not any(
                map(self._integer_derived.__contains__, op.results)
            ):
                self._round_integer_derived_values(op)
        for op in computed:
            if isinstance(op, UpdatingOp) and not isinstance(op, AssignOp):
                self._round_gradient(op)
            elif isinstance(op, AssignOp) and is_of_update(_maker(_base(op.grad))):
                self._round_trained(op.parameter)
        for op in self._operations:
            if is_of_update(op):
                self._round_operands(op)

    def _is_stored(self, value: SSAValue) -> bool:
        kind = type_of(value)
        if dtype_of(kind) != "float32" or not shape_of(kind) or value in self._numbers:
            return False
        readers = list(_readers(value))
        if readers and all(map(_sets_state, readers)):
            return False
        if len(readers) != 1 or not isinstance(readers[0], ElementwiseOp | SumOp):
            return True
        if is_of_update(readers[0]):
            return True
        return (readers[0] in self._after_loss) != (value.owner in self._after_loss)

    def _round(self, value: SSAValue) -> SSAValue:
        """Make all readers of a value read it rounded."""
        owner = _maker(value)
        first = next(iter(_readers(value)), owner) if isinstance(owner, LeafOp) else owner
        rounded = self._new(value, first)
        value.replace_uses_with_if(rounded.out, lambda use: use.operation is not rounded)
        Rewriter.insert_op(rounded, InsertPoint.after(owner))
        self._rounded.add(rounded.out)
        return rounded.out

    def _round_integer_derived_values(self, op: Operation) -> None:
        """Make an operator read them rounded."""
        for index, operand in enumerate(op.operands):
            base, kind = _base(operand), type_of(operand)
            is_stored = dtype_of(kind) == "float32" and shape_of(kind) and base not in self._numbers
            if not is_stored or base not in self._integer_derived or isinstance(base.owner, LeafOp):
                continue
            rounded = self._operands.get(base)
            if rounded is None:
                rounded = self._operands[base] = self._new(base, _maker(base))
                Rewriter.insert_op(rounded, InsertPoint.after(_maker(base)))
            op.operands[index] = _with_views(operand, base, rounded.out, InsertPoint.before(op))
            _erase_unread_views(operand, base)

    def _round_gradient(self, update: UpdatingOp) -> None:
        gradient = update.grad
        if _base(gradient) in self._rounded:
            return
        rounded = self._new(gradient, update)
        Rewriter.insert_op(rounded, InsertPoint.after(_maker(gradient)))
        update.operands[1] = rounded.out

    def _round_trained(self, state: SSAValue) -> None:
        """Make readers outside of updates read a state rounded, since its numbers are float32."""
        others = [op for op in _readers(state) if not _is_of_state(op)]
        if others and shape_of(type_of(state)):
            rounded = self._new(state, others[0])
            Rewriter.insert_op(rounded, InsertPoint.after(_maker(state)))
            kept = (rounded, *(use.operation for use in state.uses if _is_of_state(use.operation)))
            state.replace_uses_with_if(rounded.out, lambda use: use.operation not in kept)

    def _round_operands(self, op: Operation) -> None:
        """Round the gradients that an operator of an update reads."""
        for index, operand in enumerate(op.operands):
            base = _base(operand)
            is_computed = not isinstance(base.owner, LeafOp | RoundHalfOp)
            if not is_computed or is_of_update(_maker(base)) or base in self._rounded:
                continue
            if dtype_of(type_of(operand)) == "float32" and shape_of(type_of(operand)):
                rounded = self._gradients.get(operand)
                if rounded is None:
                    rounded = self._gradients[operand] = self._new(operand, op)
                    Rewriter.insert_op(rounded, InsertPoint.after(_maker(operand)))
                op.operands[index] = rounded.out

    def _new(self, value: SSAValue, scoped: Operation) -> RoundHalfOp:
        self.count += 1
        scope = scoped.properties.get("scope")
        kind = self._kind
        rounded = RoundHalfOp.of(
            [value],
            mantissa_bits=kind.mantissa_bits,
            bias=kind.bias,
            **({} if scope is None else {"scope": scope}),
        )
        rounded.location = scoped.location
        return rounded


def _integer_derived_values(operations: Iterable[Operation]) -> set[SSAValue]:
    """Return the values derived from integers.

    Positions and the angles computed from them lose their meaning in 16 bits.
    """
    found = set[SSAValue]()
    assigned = {op.parameter for op in operations if isinstance(op, AssignOp)}
    for op in operations:
        match op:
            case InputOp():
                is_derived = not is_float(type_of(op.out))
            case StateOp():
                is_derived = op.out not in assigned
            case FullOp() | ConstantOp():
                is_derived = True
            case LeafOp():
                is_derived = False
            case EmbeddingOp() | GatherOp() | IndexSelectOp() if _is_view_of_state(op.operands[0]):
                is_derived = False  # the state may be a table that another program trains
            case _ if width_of(op) is Width.HALF and not isinstance(op, ElementwiseOp):
                is_derived = False  # a product or norm computes with 16-bit operands
            case _:
                is_derived = bool(op.results) and all(map(found.__contains__, op.operands))
        if is_derived:
            found.update(op.results)
    return found


def _is_view_of_state(value: SSAValue) -> bool:
    return isinstance(_base(value).owner, StateOp)


def _stores_operands(op: Operation) -> bool:
    """True for an operator that reads the 16-bit numbers of its operands, or returns them."""
    if isinstance(op, ElementwiseOp | LeafOp):
        return False
    return isinstance(op, AddProductOp) or width_of(op) in (Width.HALF, Width.KEEPS)


def _with_views(
    value: SSAValue, base: SSAValue, replacement: SSAValue, place: InsertPoint
) -> SSAValue:
    """Return a value that is a view of a base, as the same view of its replacement."""
    if value is base:
        return replacement
    view = _maker(value)
    below = _with_views(view.operands[0], base, replacement, place)
    again = view.clone({view.operands[0]: below})
    Rewriter.insert_op(again, place)
    return again.results[0]


def _erase_unread_views(value: SSAValue, base: SSAValue) -> None:
    while value is not base and not value.uses.get_length():
        view = _maker(value)
        value = view.operands[0]
        Rewriter.erase_op(view)


def _maker(value: SSAValue) -> Operation:
    owner = value.owner
    assert isinstance(owner, Operation), "CIRH has no block arguments"
    return owner


def _base(value: SSAValue) -> SSAValue:
    """Return the value under views."""
    while isinstance(value.owner, _MOVING):
        value = value.owner.x
    return value


def _sets_state(op: Operation) -> bool:
    """True for an assignment to a state that outlives the step, and is float32."""
    if not isinstance(op, AssignOp):
        return False
    state = op.parameter.owner
    assert isinstance(state, StateOp), "verified: only states are assigned to"
    return state.of_step is None


def _is_of_state(op: Operation) -> bool:
    """True for an operator that needs a state as it is stored."""
    return is_of_update(op) or isinstance(op, AssignOp)


def _readers(value: SSAValue) -> Iterator[Operation]:
    """Return the operators that read a value, also through views."""
    for use in value.uses:
        if isinstance(use.operation, _MOVING):
            yield from _readers(use.operation.out)
        else:
            yield use.operation
