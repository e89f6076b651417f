"""Uses of a matrix, and whether it can be sharded by rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from csrun.cirh.algorithms import LambAttr
from csrun.cirh.ops.arithmetic import AddOp
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.embedding import EmbeddingDenseBackwardOp, EmbeddingOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
    smoothing_of,
)
from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import TransposeOp, ViewOp
from csrun.cirh.types import shape_of, type_of


@dataclass(frozen=True)
class Term:
    """A summand of a gradient; `is_transposed`: it is the transpose of the value."""

    op: MmOp | EmbeddingDenseBackwardOp
    is_transposed: bool


@dataclass(frozen=True)
class Loss:
    """A cross entropy whose logits have no other reader, and its backward pass, if it has one.

    bias: number per class that is added to the logits.
    bias_gradient: sum that is its gradient.
    """

    logits: MmOp
    bias: SSAValue | None
    forward: NllLossForwardOp
    backward: NllLossBackwardOp | None = None
    gradient: LogSoftmaxBackwardOp | None = None
    bias_gradient: SumOp | None = None


@dataclass
class Uses:
    """Readers of a matrix.

    sums: products with it, summed over its rows.
    sides: products with its transpose, in which each row is a column.
    losses: cross entropies whose logits are such products.
    terms: summands of its gradient.
    obstacle: reason why it cannot be sharded, if any.
    """

    lookups: list[EmbeddingOp] = field(default_factory=list)
    sums: list[MmOp] = field(default_factory=list)
    sides: list[MmOp] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    update: UpdatingOp | None = None
    terms: list[Term] = field(default_factory=list)
    obstacle: str = ""


def uses_of(parameter: ParameterOp) -> Uses:
    """Return the readers of a matrix, in program order, up to the first obstacle."""
    found = Uses()
    for op, index, is_transposed in readers_of(parameter.out):
        match op:
            case EmbeddingOp() if not is_transposed:
                found.lookups.append(op)
            case MmOp() if index == 1:
                (found.sides if is_transposed else found.sums).append(op)
            case UpdatingOp() if not index and found.update is None:
                terms = _terms(op.grad, is_transposed=False)
                found.update, found.terms = op, terms or []
                if isinstance(op.properties.get("algorithm"), LambAttr):
                    found.obstacle = "Lamb scales the update by norms of the full tensor"
                elif op.clip_each is not None:
                    found.obstacle = "its gradient is clipped by the norm of the full tensor"
                elif terms is None:
                    found.obstacle = "its gradient is not a sum of products and lookups"
            case _:
                found.obstacle = f"{op.name} reads it"
        if found.obstacle:
            return found
    found.losses = [loss for op in found.sides if (loss := _loss_of(op, found)) is not None]
    return found


def untransposed(value: SSAValue) -> tuple[SSAValue, bool]:
    """Return the matrix under a possible transpose, and whether there is one."""
    is_transposed = False
    while isinstance(value.owner, TransposeOp):
        value, is_transposed = value.owner.x, not is_transposed
    return value, is_transposed


def readers_of(
    value: SSAValue, is_transposed: bool = False
) -> Iterator[tuple[Operation, int, bool]]:
    """Return the operators that read a matrix, by operand, and whether transposed."""
    for use in list(value.uses):
        if isinstance(use.operation, TransposeOp):
            yield from readers_of(use.operation.out, not is_transposed)
        else:
            yield use.operation, use.index, is_transposed


def _terms(value: SSAValue, is_transposed: bool) -> list[Term] | None:
    """Return the summands of a gradient; None if one cannot be sharded, or has other readers."""
    op = value.owner
    if value.uses.get_length() != 1:
        return None
    match op:
        case TransposeOp():
            return _terms(op.x, not is_transposed)
        case AddOp() if type_of(op.lhs) == type_of(op.rhs):
            left, right = (_terms(operand, is_transposed) for operand in op.operands)
            return None if left is None or right is None else [*left, *right]
        case MmOp():
            return [Term(op, is_transposed)]
        case EmbeddingDenseBackwardOp() if not is_transposed:
            return [Term(op, is_transposed)]
        case _:
            return None


def _loss_of(logits: MmOp, uses: Uses) -> Loss | None:
    """Return the cross entropy whose logits a product computes, if it is their only use."""
    biased, bias = _biased(logits.out)
    softmax = _only_reader(biased)
    if not isinstance(softmax, LogSoftmaxOp) or softmax.dim.value.data != 1:
        return None
    if type_of(biased) != type_of(logits.out):
        return None
    readers = [use.operation for use in softmax.out.uses]
    losses = [op for op in readers if isinstance(op, NllLossForwardOp | NllLossBackwardOp)]
    if any(smoothing_of(op.properties) for op in losses):
        return None
    match sorted(readers, key=lambda op: _ORDER.get(type(op), 0)):
        case [NllLossForwardOp() as forward]:
            return Loss(logits, bias, forward)
        case [NllLossForwardOp() as forward, NllLossBackwardOp() as back, gradient]:
            is_its = (back.labels, back.ignore_index) == (forward.labels, forward.ignore_index)
            if not isinstance(gradient, LogSoftmaxBackwardOp) or not is_its:
                return None
            sums = [*_sums_of_rows(gradient.out, logits.out)]
            if _only_reader(back.out) is not gradient or len(sums) > (bias is not None):
                return None
            if not _is_read_by(gradient.out, uses, sums):
                return None
            return Loss(logits, bias, forward, back, gradient, next(iter(sums), None))
        case _:
            return None


_ORDER: dict[type[Operation], int] = {
    NllLossForwardOp: 1,
    NllLossBackwardOp: 2,
    LogSoftmaxBackwardOp: 3,
}


def _biased(value: SSAValue) -> tuple[SSAValue, SSAValue | None]:
    """Return logits with an addend to each row, under any views, if there is one."""
    classes, bias = shape_of(type_of(value))[1:], None
    while True:
        match _only_reader(value):
            case ViewOp() as op if shape_of(type_of(op.out))[-1:] == classes:
                value = op.out
            case AddOp(lhs=lhs, rhs=rhs) as op if bias is None:
                bias = rhs if lhs is value else lhs
                if shape_of(type_of(bias)) != classes:
                    return value, None
                value = op.out
            case _:
                return value, bias


def _through_views(value: SSAValue) -> Iterator[Operation]:
    """Return the operators that read a value under any views."""
    for use in list(value.uses):
        if isinstance(use.operation, ViewOp):
            yield from _through_views(use.operation.out)
        else:
            yield use.operation


def _sums_of_rows(gradient: SSAValue, logits: SSAValue) -> Iterator[SumOp]:
    """Return the operators that sum each class of logits, under any view of their rows."""
    for op in _through_views(gradient):
        if isinstance(op, SumOp):
            *rows, classes = shape_of(type_of(op.x))
            is_of_rows = ints(op.properties, "dims") == tuple(range(len(rows)))
            if is_of_rows and (classes,) == shape_of(type_of(logits))[1:]:
                yield op


def _is_read_by(gradient: SSAValue, uses: Uses, sums: Sequence[Operation]) -> bool:
    """Return whether the logits' gradient only flows through this matrix and to its gradient.

    sums: other allowed readers, under any views.
    """
    own = {*(term.op for term in uses.terms), *sums}
    others = [op for op, *_ in readers_of(gradient) if op not in own and not _is_for(op, sums)]
    through = [op for op in uses.sums if op.lhs is gradient]
    return len(through) <= 1 and others == through


def _is_for(op: Operation, readers: Sequence[Operation]) -> bool:
    """Return whether it is a view that only these read."""
    return isinstance(op, ViewOp) and all(each in readers for each in _through_views(op.out))


def _only_reader(value: SSAValue) -> Operation | None:
    return next(iter(value.uses)).operation if value.uses.get_length() == 1 else None
