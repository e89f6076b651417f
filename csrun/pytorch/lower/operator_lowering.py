"""Lowering of the operators of a Recording to CIRH, one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xdsl.ir import SSAValue

from csrun.base.identifier import identifier
from csrun.cirh.ops.learning import LossScaleOp
from csrun.cirh.ops.model import LeafOp
from csrun.cirh.types import tensor_type
from csrun.executable import RECORDED
from csrun.executable.loss_scale import LossScaling
from csrun.pytorch.lower.decomposition import emit_decomposition, has_weights, is_of_parts
from csrun.pytorch.lower.distinct_indices import PUTS, writes_once
from csrun.pytorch.lower.loss_scaling import seed_of
from csrun.pytorch.lower.source_line import SourceLine
from csrun.pytorch.lower.valid_rows import divide_by_count, mask_rows
from csrun.pytorch.operators import EMITTED, Emission, emit_operator
from csrun.pytorch.operators.base import (
    READERS_OF_SAVED,
    SMALL,
    UNUSED,
    BackwardOnly,
    Complex,
    Unsupported,
    name_of,
    real_type,
)
from csrun.pytorch.operators.views import EMITTERS as VIEWS
from csrun.pytorch.record.arguments import map_arguments
from csrun.pytorch.record.recording import GraphLeaf, RecordedOperator, Recording, Ref
from csrun.pytorch.record.rows.padded import SumOfRows, plain_operator


def value_name(ref: Ref, operator: str) -> str:
    """Return the name in CIRH of an operator's result."""
    return f"{RECORDED}{ref.number}_{identifier(operator)}"


class OperatorLowering:
    """Lowering of operators; the values that they read are known by their numbers.

    scaling: of the loss. names_values: values have the names of `value_name`.
    """

    def __init__(
        self,
        recording: Recording,
        emission: Emission,
        source: SourceLine,
        scaling: LossScaling | None,
        names_values: bool,
    ) -> None:
        self._recording, self._emission, self._source = recording, emission, source
        self._builder, self._scaling, self._names_values = emission.builder, scaling, names_values
        self._values: dict[Ref, Any] = {}  # values of CIRH, some of them BackwardOnly
        self._constants: dict[Ref, GraphLeaf] = {}

    @property
    def drawn(self) -> Mapping[int, SSAValue]:
        """Dropout masks by the number of their operator."""
        return self._emission.drawn

    def _emit_operator(self, number: int, op: RecordedOperator) -> None:
        if op.is_of_host:
            self._bind_unused(op)
            return
        if isinstance(op.call, SumOfRows):
            self._emit_sum_of_rows(number, op, op.call)
            return
        if self._scaling is not None and number == seed_of(self._recording):
            self._bind(op, (self._loss_scale(),))
            return
        with self._source.attributed(op.line, op.name, op.scope), self._builder.in_scope(op.scope):
            self._require_defined(op)
            self._emission.number = number
            self._emission.forward_number = -1 if op.forward is None else op.forward
            results = [ref for ref in op.results if ref is not None]
            self._emission.kinds = tuple(map(self._recording.kind, results))
            arguments, keywords = self._arguments(op)
            if op.name in VIEWS and isinstance(arguments[0], BackwardOnly):
                self._bind(op, [self._view(op, *arguments, **keywords)])
                return
            if op.name not in READERS_OF_SAVED:
                arguments, keywords = map_arguments(as_atens, arguments, keywords)
            found = self._emit(op, arguments, keywords)
            self._bind(op, found if isinstance(found, tuple) else (found,))

    def _emit_sum_of_rows(self, number: int, op: RecordedOperator, call: SumOfRows) -> None:
        """Emit an operator without the padding of its operands, and the quotient by the count."""
        plain, count = plain_operator(op), op.keywords.get("count")
        masked = {plain.arguments[each.argument]: each for each in call.masked}
        before = {ref: self._value(ref) for ref in masked}
        with self._source.attributed(op.line, plain.name, op.scope):
            for ref, each in masked.items():
                valid = self._value(op.keywords["valid"])
                self._values[ref] = mask_rows(self._emission, before[ref], valid, each)
        self._emit_operator(number, plain)
        self._values |= before
        if count is not None:
            with self._source.attributed(op.line, plain.name, op.scope):
                for ref in filter(None, op.results):
                    total = self._values[ref]
                    self._values[ref] = divide_by_count(self._emission, total, self._value(count))

    def _loss_scale(self) -> SSAValue:
        """Return the scale of the loss, the gradient that a scaled backward pass begins with."""
        assert self._recording.loss is not None, "a scaled loss"
        kind = self._recording.kind(self._recording.loss)
        scale = self._builder.leaf(LossScaleOp, tensor_type((), name_of(kind.dtype)))
        return self._emission.view(scale, kind.shape)

    def _require_defined(self, op: RecordedOperator) -> None:
        """Raises: Unsupported if PyTorch does not define an operator's result"""
        is_scatter = op.name == "aten.scatter.src" and not op.is_backward
        if is_scatter and not writes_once(self._recording, op):
            raise Unsupported(
                "indices may repeat, and PyTorch does not define which value is kept: use "
                "scatter_add"
            )

    def _arguments(self, op: RecordedOperator) -> tuple[Any, dict[str, Any]]:
        """Return an operator's arguments and keywords with values for the recorded references."""
        arguments, keywords = map_arguments(self._argument, op.arguments, op.keywords)
        keywords = {name: given for name, given in keywords.items() if name not in UNUSED}
        if op.name in PUTS:
            keywords["is_distinct"] = writes_once(self._recording, op)
        return arguments, keywords

    def _bind_unused(self, op: RecordedOperator) -> None:
        """Bind results of the host that the program does not need."""
        for ref in op.results:
            if ref is not None and ref not in self._values:
                kind = self._recording.kind(ref)
                self._values[ref] = self._emission.full(0, name_of(kind.dtype), kind.shape)

    def _emit(self, op: RecordedOperator, arguments: Any, keywords: Any) -> Any:
        """Return an operator's results, by its emitter or by PyTorch's decomposition."""
        is_known = op.name in EMITTED
        if is_known and not has_weights(op) and not is_of_parts(op, arguments):
            return emit_operator(self._emission, op.name, arguments, keywords)
        found = emit_decomposition(
            self._emission, op, lambda ref: as_atens(self._value(ref)), self._recording.kind
        )
        if found is None:
            raise Unsupported("operator not supported: rewrite the line with other operators")
        return found

    def _view(self, op: RecordedOperator, given: BackwardOnly, *others: Any, **more: Any) -> Any:
        """Return a view of a result for the backward pass; ATen's values are viewed when read."""
        kinds = self._emission.kinds

        def emit() -> Any:
            reader, self._emission.kinds = self._emission.kinds, kinds
            try:
                return emit_operator(self._emission, op.name, (as_atens(given), *others), more)
            finally:
                self._emission.kinds = reader

        return replace(given, emit=given.emit and emit)

    def _bind(
        self, op: RecordedOperator, found: Sequence[SSAValue | Complex | BackwardOnly | None]
    ) -> None:
        """Bind results to their values, and check shapes and types against PyTorch's."""
        for ref, value in zip(op.results, found, strict=False):
            if ref is None or value is None:
                continue
            kind = self._recording.kind(ref)
            if kind.dtype in SMALL and op.name not in VIEWS and isinstance(value, SSAValue):
                value = self._emission.wrap(value, kind.dtype)
            self._values[ref] = value
            if isinstance(value, BackwardOnly):
                continue
            expected = tensor_type(kind.shape, name_of(real_type(kind.dtype)))
            for part in value.parts if isinstance(value, Complex) else (value,):
                assert part.type == expected, f"{op.name} of {op.line}: {part.type}, not {expected}"
            if isinstance(value, Complex):
                continue
            if self._names_values and not isinstance(value.owner, LeafOp):
                value.name_hint = value_name(ref, op.name)

    def _argument(self, argument: Any) -> Any:
        return self._value(argument) if isinstance(argument, Ref) else argument

    def _value(self, ref: Ref) -> Any:
        if ref not in self._values:
            values = self._constants[ref].tensor.detach()
            name_of(real_type(values.dtype))
            self._values[ref] = self._emission.array(values)
        return self._values[ref]


def as_atens(given: Any) -> Any:
    """Return a value as another operator than its own backward reads it. Raises: Unsupported"""
    if not isinstance(given, BackwardOnly):
        return given
    if given.emit is None:
        raise Unsupported(
            "the saved statistics of a norm are available only to the backward pass: compute mean "
            "and variance in forward"
        )
    return given.emit()
