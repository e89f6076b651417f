"""Storage in 16-bit words: weights, gradients, and the activations that the backward pass reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.base.half_formats import WORD, HalfFormat
from csrun.cirh import storage_of
from csrun.cirh.ops.embedding import EmbeddingOp
from csrun.cirh.ops.half import ConvertingOp, HalfWordsOp, NarrowHalfOp, RoundHalfOp, WidenHalfOp
from csrun.cirh.ops.learning import AssignOp, UpdatingOp
from csrun.cirh.ops.model import LossOp, ParameterOp
from csrun.cirh.ops.shape import VIEWS
from csrun.cirh.types import dtype_of, shape_of, tensor_type, type_of
from csrun.compiler.passes.rewrite import Pass, PassResult


@dataclass(frozen=True)
class _Read:
    """An operand of an operator: a value stored in 16 bits, seen through these views."""

    reader: Operation
    index: int
    views: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class HalfWords(Pass):
    """Before: any valid module. After: if it has a 16-bit format, words are

    - the weights: operators of each layer read them widened once per pass; a lookup returns words;
    - the gradients, narrowed before their updates;
    - results of `round_half` in the forward pass that the backward pass reads: they are narrowed
      there, and widened next to the backward operators of each layer.

    No number changes, since narrowed values were rounded before; weights are rounded
    before they are sent, or by updates.
    """

    name: ClassVar[str] = "halves"

    def apply(self, module: ModuleOp) -> PassResult:
        """Insert the conversions, and count them by purpose."""
        kind = storage_of(module)
        if kind is None:
            return PassResult(False)
        words = _WordInsertion(module, kind)
        weights, gradients, activations = words.weights(), words.gradients(), words.activations()
        return PassResult(
            weights + gradients + activations > 0,
            (f"words: {weights} weights, {gradients} gradients, {activations} activations",),
        )


class _WordInsertion:
    def __init__(self, module: ModuleOp, kind: HalfFormat) -> None:
        self._operations = list(module.ops)
        self._places = {op: place for place, op in enumerate(self._operations)}
        found = (n for n, op in enumerate(self._operations) if isinstance(op, LossOp))
        self._loss = next(found, len(self._operations))
        self._options = {"mantissa_bits": kind.mantissa_bits, "bias": kind.bias}

    def weights(self) -> int:
        """Make all operators read weights from words."""
        parameters = [op for op in self._operations if isinstance(op, ParameterOp)]
        for parameter in parameters:
            late = list(self._late(parameter.out))
            early = [
                _Read(use.operation, use.index)
                for use in parameter.out.uses
                if self._places[use.operation] <= self._loss
            ]
            words = Rewriter.replace_value_with_new_type(parameter.out, _words_of(parameter.out))
            self._widen(words, [read for read in late if not _is_update(read)])
            _erase_unread_views(words)
            self._widen(words, [read for read in early if read.reader.parent is not None])
        return len(parameters)

    def gradients(self) -> int:
        """Narrow each parameter's gradient, instead of rounding it if nothing else reads it."""
        updates = [op for op in self._operations if isinstance(op, UpdatingOp)]
        trained = [op for op in updates if not isinstance(op, AssignOp)]
        for update in trained:
            views: list[Operation] = []
            rounded = update.grad
            while isinstance(rounded.owner, VIEWS):
                views.insert(0, rounded.owner)
                rounded = rounded.owner.x
            owner = rounded.owner
            assert isinstance(owner, RoundHalfOp), "each gradient is rounded"
            words = self._converted(HalfWordsOp, rounded, owner)
            Rewriter.insert_op(words, InsertPoint.after(owner))
            update.operands[1] = _under(views, words.out, InsertPoint.before(update))
            _erase_unread_views(rounded)
            if rounded.uses.get_length() == 1:
                narrowed = self._converted(NarrowHalfOp, owner.x, owner)
                Rewriter.replace_op(words, narrowed)
                Rewriter.erase_op(owner)
        return len(trained)

    def activations(self) -> int:
        """Make the backward pass read words of values rounded in the forward pass."""
        count = 0
        for op in self._operations[: self._loss]:
            is_there = isinstance(op, RoundHalfOp) and op.parent is not None
            if is_there and (reads := list(self._late(op.results[0]))):
                words = self._converted(HalfWordsOp, op.results[0], op)
                Rewriter.insert_op(words, InsertPoint.after(op))
                self._widen(words.out, reads)
                count += 1
        return count

    def _late(self, value: SSAValue, views: tuple[Operation, ...] = ()) -> Iterator[_Read]:
        """Return reads after the loss, of a value or of a view of it."""
        for use in list(value.uses):
            if self._places.get(use.operation, -1) > self._loss:
                yield _Read(use.operation, use.index, views)
            elif isinstance(use.operation, VIEWS):
                yield from self._late(use.operation.out, (*views, use.operation))

    def _widen(self, words: SSAValue, reads: Sequence[_Read]) -> None:
        """Widen words before their first reader in each layer."""
        widened: dict[object, ConvertingOp] = {}
        for read in sorted(reads, key=lambda read: self._places[read.reader]):
            if isinstance(read.reader, EmbeddingOp) and read.index == 0 and not read.views:
                self._widen_result(words, read.reader)
                continue
            scope = read.reader.properties.get("scope")
            if scope not in widened:
                made = widened[scope] = self._converted(WidenHalfOp, words, read.reader)
                Rewriter.insert_op(made, InsertPoint.before(read.reader))
            value = _under(read.views, widened[scope].out, InsertPoint.before(read.reader))
            read.reader.operands[read.index] = value

    def _widen_result(self, words: SSAValue, lookup: EmbeddingOp) -> None:
        """Make a lookup move words, whose rows are then widened."""
        lookup.operands[0] = words
        rows = Rewriter.replace_value_with_new_type(lookup.out, _words_of(lookup.out))
        made = self._converted(WidenHalfOp, rows, lookup)
        rows.replace_uses_with_if(made.out, lambda use: use.operation is not made)
        Rewriter.insert_op(made, InsertPoint.after(lookup))

    def _converted(
        self, kind: type[ConvertingOp], value: SSAValue, anchor: Operation
    ) -> ConvertingOp:
        scope = anchor.properties.get("scope")
        own = {} if scope is None else {"scope": scope}
        made = kind.of([value], **self._options, **own)
        made.location = anchor.location
        return made


def _is_update(read: _Read) -> bool:
    return isinstance(read.reader, UpdatingOp) and read.index == 0


def _words_of(value: SSAValue) -> TensorType:
    return tensor_type(shape_of(type_of(value)), WORD)


def _under(views: Sequence[Operation], value: SSAValue, place: InsertPoint) -> SSAValue:
    """Return the value under copies of these views."""
    for view in views:
        again = view.clone({view.operands[0]: value})
        Rewriter.insert_op(again, place)
        dtype, value = dtype_of(type_of(value)), again.results[0]
        kind = tensor_type(shape_of(type_of(value)), dtype)
        if value.type != kind:
            value = Rewriter.replace_value_with_new_type(value, kind)
    return value


def _erase_unread_views(value: SSAValue) -> None:
    """Erase views of a value that nothing reads."""
    for use in list(value.uses):
        if isinstance(use.operation, VIEWS):
            _erase_unread_views(use.operation.out)
            if not use.operation.out.uses.get_length():
                Rewriter.erase_op(use.operation)
