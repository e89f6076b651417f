"""Sharding of matrices that are too large to be transferred at once, by rows or columns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from math import gcd
from typing import ClassVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.builder import Builder
from csrun.cirh.ops.arithmetic import AddOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.embedding import EmbeddingDenseBackwardOp, EmbeddingOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import LossOp, ParameterOp, PartAttr
from csrun.cirh.ops.products import AddProductOp, MmOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import CloneOp, SliceOp, TransposeOp, ViewOp
from csrun.cirh.ops.vocab_shards import (
    EmbeddingPartBackwardOp,
    EmbeddingPartOp,
    LogSumExpPartOp,
    NllLossOfSumsOp,
    NllLossPartBackwardOp,
)
from csrun.cirh.types import dtype_of, shape_of, size_of, tensor_type, type_of
from csrun.compiler.passes.rewrite import DeadCodeElimination, Pass, PassResult
from csrun.compiler.passes.rewrite_rules import replace_by_value
from csrun.compiler.passes.transposition import transposed_if_wide
from csrun.compiler.passes.uses import Loss, Term, Uses, untransposed, uses_of
from csrun.executable import ALIGNMENT_BYTES


@dataclass(frozen=True)
class MatrixSharding(Pass):
    """Before: any valid module whose products have no biases.

    After: an equivalent module without matrix parameters of more than `most_bytes`: each is
    sharded by rows, and a wide one is transposed first. A product with it is a sum over the shards;
    a product with its transpose is their concatenation. A cross entropy of just such a product and
    a bias runs shard by shard over the classes, so its full logits never exist. Backward operators
    of a shard are grouped, last shard first, because it is still resident.

    A matrix with other uses is not sharded, nor one that Lamb trains, by a norm of all of it.
    """

    most_bytes: int | None = None  # None: no matrix is sharded

    name: ClassVar[str] = "cutting"

    def apply(self, module: ModuleOp) -> PassResult:
        """Shard the matrices above the limit, and report the number of shards."""
        lines, most = [], self.most_bytes
        for op in _parameters(module):
            if most is None or not _is_large(op, most):
                continue
            op = transposed_if_wide(op)
            if (rows := rows_of_part(op, most)) is None:
                continue
            uses = uses_of(op)
            if uses.obstacle:
                lines.append(f"{op.symbol.data} is not sharded: {uses.obstacle}")
                continue
            parts = parts_of(op, rows)
            _ShardedMatrix(uses, parts).run(module)
            # The shards replace the matrix: its old readers are erased before it is.
            DeadCodeElimination().apply(module)
            Rewriter.erase_op(op)
            what = "columns" if op.transposed else "rows"
            lines.append(f"{op.symbol.data}: {len(parts)} shards of up to {rows} {what}")
        return PassResult(bool(lines), tuple(lines))


def unsharded_matrices(module: ModuleOp, most_bytes: int) -> list[str]:
    """Return for each larger matrix that was not sharded its name and the reason."""
    large = [op for op in _parameters(module) if rows_of_part(op, most_bytes) is not None]
    why = {op.symbol.data: uses_of(op).obstacle for op in large}
    return [f"{name} is not sharded: {obstacle}" for name, obstacle in why.items() if obstacle]


def _parameters(module: ModuleOp) -> list[ParameterOp]:
    return [op for op in module.ops if isinstance(op, ParameterOp)]


def _is_large(op: ParameterOp, most_bytes: int) -> bool:
    """Return whether it is a matrix above the limit."""
    kind = type_of(op.out)
    return len(shape_of(kind)) == 2 and size_of(kind) * _itemsize(op) > most_bytes


def _itemsize(op: ParameterOp) -> int:
    return np.dtype(dtype_of(type_of(op.out))).itemsize


def rows_of_part(op: ParameterOp, most_bytes: int) -> int | None:
    """Return the rows of a shard, if the parameter is a matrix above the limit; shards are nearly
    equal.

    Shards are consecutive in the store, and each begins at an aligned offset.
    """
    if not _is_large(op, most_bytes):
        return None
    all_rows, columns = shape_of(type_of(op.out))
    row_bytes = columns * _itemsize(op)
    step = ALIGNMENT_BYTES // gcd(ALIGNMENT_BYTES, row_bytes)
    most = max(most_bytes // (row_bytes * step), 1) * step
    count = -(-all_rows // most)
    rows = -(-all_rows // (count * step)) * step
    return rows if rows < all_rows else None


@dataclass(frozen=True)
class WeightShard:
    """Rows of a matrix; `name` is that of the parameter and of its layer."""

    name: str
    out: SSAValue
    first: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.first


def parts_of(op: ParameterOp, rows: int) -> list[WeightShard]:
    """Create the shards of a matrix with this many rows each, in its place."""
    name, kind = op.symbol.data, type_of(op.out)
    count, columns = shape_of(kind)
    transposed = {} if op.transposed is None else {"transposed": op.transposed}
    builder, found = _before(op), []
    for first in range(0, count, rows):
        stop = min(first + rows, count)
        own = f"{name}[{':,' if transposed else ''}{first}:{stop}]"
        with builder.in_scope(own):
            out = builder.leaf(
                ParameterOp,
                tensor_type((stop - first, columns), dtype_of(kind)),
                symbol=own,
                initializer=op.initializer,
                part=PartAttr.of(name, count, first),
                **transposed,
            )
        found.append(WeightShard(own, out, first, stop))
    return found


def _before(op: Operation) -> Builder:
    """Return a builder that writes before an operator, in its scope."""
    assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
    return Builder(InsertPoint.before(op), op.scope.data if op.scope else "", lambda: op.location)


class _ShardedMatrix:
    """Rewrites the users of one matrix to use its shards.

    terms_after: for operators of the backward pass, the terms of the gradient that are computed
        right after them.
    """

    def __init__(self, uses: Uses, parts: list[WeightShard]) -> None:
        self._uses = uses
        self._parts = parts
        self._terms_after: dict[Operation, list[Term]] = {}
        self._gradients: dict[Term, dict[WeightShard, SSAValue]] = {term: {} for term in uses.terms}
        self._sums: dict[Loss, SSAValue] = {}
        self._biases: dict[Loss, SSAValue] = {}
        self._is_back = False

    def run(self, module: ModuleOp) -> None:
        """Rewrite all uses, in program order."""
        makers, operations = self._makers(), list(module.ops)
        self._match_backward_terms(operations)
        for op in operations:
            self._is_back = self._is_back or isinstance(op, LossOp)
            if op.parent is not None and op in makers:
                makers[op]()

    def _makers(self) -> dict[Operation, Callable[[], None]]:
        uses, found = self._uses, dict[Operation, Callable[[], None]]()
        found |= {op: partial(self._embed, op) for op in uses.lookups}
        found |= {op: partial(self._add, op) for op in uses.sums}
        found |= {op: partial(self._concatenate_columns, op) for op in uses.sides}
        for loss in uses.losses:
            del found[loss.logits]
            found[loss.forward] = partial(self._loss, loss)
            if loss.gradient is not None:
                found[loss.gradient] = partial(self._loss_backward, loss)
        found |= {term.op: partial(self._write_term, term) for term in uses.terms}
        if uses.update is not None:
            found[uses.update] = partial(self._update, uses.update)
        return found

    def _match_backward_terms(self, operations: list[Operation]) -> None:
        """Find for each term the operator of the backward pass that reads the same gradient and the
        matrix.
        """
        places = {op: place for place, op in enumerate(operations)}
        loss = next((places[op] for op in operations if isinstance(op, LossOp)), len(operations))
        found = dict[SSAValue, Operation]()
        for op in (*self._uses.sums, *self._uses.sides):
            if places[op] > loss:
                found[untransposed(op.lhs)[0]] = op
        for one in self._uses.losses:
            if one.gradient is not None:
                found[one.gradient.out] = one.gradient
        made: dict[SSAValue, int] = {x: place for op, place in places.items() for x in op.results}
        for term in self._uses.terms:
            bases = [untransposed(value)[0] for value in term.op.operands]
            anchors = (found[base] for base in bases if base in found)
            for anchor in anchors:
                if all(made[base] <= places[anchor] for base in bases):
                    self._terms_after.setdefault(anchor, []).append(term)
                    break

    def _in_turn(self) -> list[WeightShard]:
        return self._parts[::-1] if self._is_back else self._parts

    def _each(self, builder: Builder) -> Iterator[WeightShard]:
        """Yield the shards, each as a scope of the builder."""
        for part in self._in_turn():
            with builder.in_scope(part.name):
                yield part

    def _embed(self, op: EmbeddingOp) -> None:
        builder, found = _before(op), list[SSAValue]()
        for part in self._each(builder):
            place = {"num_weights": self._parts[-1].stop, "first": part.first}
            found = [builder.emit(EmbeddingPartOp, part.out, op.indices, *found, **place)]
        replace_by_value(op, *found)

    def _add(self, op: MmOp) -> None:
        builder, total = _before(op), None
        for part in self._each(builder):
            total = _plus(builder, total, _slice(builder, op.lhs, 1, part), part.out)
            self._make_terms(builder, op, part)
        assert total is not None, "there are shards"
        replace_by_value(op, total)

    def _concatenate_columns(self, op: MmOp) -> None:
        builder, found = _before(op), dict[WeightShard, SSAValue]()
        for part in self._each(builder):
            found[part] = builder.emit(MmOp, op.lhs, builder.emit(TransposeOp, part.out))
            self._make_terms(builder, op, part)
        replace_by_value(op, builder.emit(CatOp, *map(found.__getitem__, self._parts), dim=1))

    def _loss(self, loss: Loss) -> None:
        op, found = loss.forward, tuple[SSAValue, ...]()
        builder = _before(op)
        if loss.bias is not None:
            self._biases[loss] = _copy_of(loss.bias, op)
        for part in self._each(builder):
            logits = self._logits(builder, loss, part)
            operands = logits, op.labels, *found
            found = builder.emit_all(LogSumExpPartOp, *operands, first=part.first)
        self._sums[loss] = found[0]
        classes, ignored = self._parts[-1].stop, op.ignore_index
        with builder.in_scope(self._parts[-1].name):
            total = builder.emit(
                NllLossOfSumsOp, *found, op.labels, classes=classes, ignore_index=ignored
            )
        replace_by_value(op, total)

    def _loss_backward(self, loss: Loss) -> None:
        """Write the recomputed logits, shard by shard, and the readers of their gradient."""
        gradient, back = loss.gradient, loss.backward
        assert gradient is not None, "it has a backward operator"
        assert back is not None, "it has a backward operator"
        reader = next((op for op in self._uses.sums if op.lhs is gradient.out), None)
        builder, total = _before(gradient), None
        sums = dict[WeightShard, SSAValue]()
        for part in self._each(builder):
            logits = self._logits(builder, loss, part)
            operands = back.grad, logits, self._sums[loss], back.labels
            own = builder.emit(
                NllLossPartBackwardOp, *operands, first=part.first, ignore_index=back.ignore_index
            )
            if reader is not None:
                total = _plus(builder, total, own, part.out)
            if loss.bias_gradient is not None:
                sums[part] = builder.emit(SumOp, own, dims=(0,), keepdim=False)
            self._make_terms(builder, gradient, part, own)
        if reader is not None and total is not None:
            replace_by_value(reader, total)
        if loss.bias_gradient is not None:
            self._concatenate_bias(loss.bias_gradient, sums)

    def _concatenate_bias(self, gradient: SumOp, sums: Mapping[WeightShard, SSAValue]) -> None:
        """Write a bias's gradient from its parts, after all of them, so that its group has one
        visit.
        """
        builder, shape = _before(gradient), shape_of(type_of(gradient.out))
        whole = builder.emit(CatOp, *map(sums.__getitem__, self._parts), dim=0)
        replace_by_value(gradient, builder.emit(ViewOp, whole, shape=shape))

    def _logits(self, builder: Builder, loss: Loss, part: WeightShard) -> SSAValue:
        """Write the logits of a shard's classes."""
        logits = builder.emit(MmOp, loss.logits.lhs, builder.emit(TransposeOp, part.out))
        bias = self._biases.get(loss)
        if bias is None:
            return logits
        return builder.emit(AddOp, logits, _slice(builder, bias, 0, part))

    def _make_terms(
        self, builder: Builder, op: Operation, part: WeightShard, own: SSAValue | None = None
    ) -> None:
        for term in self._terms_after.get(op, ()):
            whole = None if own is None else op.results[0]
            self._gradients[term][part] = _term(builder, term, part, whole, own)

    def _write_term(self, term: Term) -> None:
        """Write a term that is not part of a sum."""
        if not self._gradients[term]:
            builder = _before(term.op)
            for part in self._each(builder):
                self._gradients[term][part] = _term(builder, term, part)

    def _update(self, op: UpdatingOp) -> None:
        builder = _before(op)
        properties = {name: value for name, value in op.properties.items() if name != "scope"}
        for part in self._each(builder):
            terms = [self._gradients[term][part] for term in self._uses.terms]
            gradient = reduce(partial(builder.emit, AddOp), terms)
            builder.effect(type(op), part.out, gradient, **properties)
        Rewriter.erase_op(op)


def _copy_of(bias: SSAValue, before: Operation) -> SSAValue:
    """Copy a bias as an activation, so that its group is loaded once instead of with each shard."""
    scope = getattr(bias.owner, "scope", None)
    builder = _before(before)
    with builder.in_scope(scope.data if scope else ""):
        return builder.emit(CloneOp, bias)


def _plus(builder: Builder, total: SSAValue | None, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
    if total is None:
        return builder.emit(MmOp, lhs, rhs)
    return builder.emit(AddProductOp, total, lhs, rhs)


def _slice(builder: Builder, value: SSAValue, dim: int, part: WeightShard) -> SSAValue:
    return builder.emit(SliceOp, value, dim=dim, start=part.first, end=part.stop, step=1)


def _term(
    builder: Builder,
    term: Term,
    part: WeightShard,
    whole: SSAValue | None = None,
    own: SSAValue | None = None,
) -> SSAValue:
    """Return a shard's rows of a summand of the gradient; `own` are the shard's columns of
    `whole`.
    """
    op = term.op
    if isinstance(op, EmbeddingDenseBackwardOp):
        operands, padding = (op.grad, op.indices), op.padding_idx
        return builder.emit(
            EmbeddingPartBackwardOp,
            *operands,
            rows=part.rows,
            first=part.first,
            padding_idx=padding,
        )
    lhs, rhs = (_here(builder, value, whole, own) for value in op.operands)
    if term.is_transposed:
        columns = rhs if _is_of(op.rhs, whole) else _slice(builder, rhs, 1, part)
        return builder.emit(TransposeOp, builder.emit(MmOp, lhs, columns))
    rows = lhs if _is_of(op.lhs, whole) else _slice(builder, lhs, 0, part)
    return builder.emit(MmOp, rows, rhs)


def _here(
    builder: Builder, value: SSAValue, whole: SSAValue | None, own: SSAValue | None
) -> SSAValue:
    """Return a matrix whose transpose may come later; the shard's own in place of `whole`."""
    base, is_transposed = untransposed(value)
    found = own if own is not None and base is whole else base
    return builder.emit(TransposeOp, found) if is_transposed else found


def _is_of(value: SSAValue, whole: SSAValue | None) -> bool:
    return untransposed(value)[0] is whole
