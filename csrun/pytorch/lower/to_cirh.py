"""Lowering of a Recording to CIRH: a module for the compiler that contains the backward pass."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch.utils._pytree import tree_map
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from csrun.base.identifier import identifier
from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module
from csrun.cirh.algorithms import Algorithm, StepNumberAttr
from csrun.cirh.ops.learning import (
    UNLIMITED,
    ApplyGradientOp,
    AssignOp,
    Clipping,
    LossScaleOp,
)
from csrun.cirh.ops.model import (
    Distribution,
    InitializerAttr,
    InputOp,
    LeafOp,
    LossOp,
    OutputOp,
    ParameterOp,
    StateOp,
    StoredOp,
)
from csrun.cirh.types import tensor_type
from csrun.executable import RECORDED
from csrun.executable.loss_scale import LossScaling
from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.lower.clipping import clipping_of
from csrun.pytorch.lower.decomposition import emit_decomposition, has_weights, is_of_parts
from csrun.pytorch.lower.distinct_indices import PUTS, writes_once
from csrun.pytorch.lower.loss_scaling import require_unedited, rule_of, seed_of
from csrun.pytorch.lower.operator_selection import (
    backward_operators,
    dead_gradient_operators,
    float_type_of,
    host_only_operators,
)
from csrun.pytorch.lower.source_line import SourceLine
from csrun.pytorch.lower.valid_rows import divide_by_count, mask_rows
from csrun.pytorch.operators import EMITTED, Emission, emit_operator
from csrun.pytorch.operators.base import (
    READERS_OF_SAVED,
    SMALL,
    SMALL_AS,
    UNUSED,
    BackwardOnly,
    Complex,
    Unsupported,
    name_of,
    real_type,
)
from csrun.pytorch.operators.views import EMITTERS as VIEWS
from csrun.pytorch.record.recording import (
    GraphLeaf,
    LeafSource,
    RecordedOperator,
    Recording,
    Ref,
)
from csrun.pytorch.record.rows.padded import SumOfRows, plain_operator
from csrun.records.torch_names import stored_name

log = logging.getLogger("csrun")

# the user's initial values are written to the store
_ZEROS = InitializerAttr.of(Distribution.ZEROS)


def output_name(value: Ref) -> str:
    """Return the output name of a recorded value."""
    return f"value_{value.number}"


def module_of(
    recording: Recording,
    algorithms: Mapping[str, Algorithm],
    run_mode: RunMode = RunMode.TRAIN,
    outputs: Sequence[Ref] = (),
    clipping: Clipping = UNLIMITED,
    scaling: LossScaling | None = None,
    names_values: bool = False,
    earlier_updates: Mapping[str, StepNumberAttr] = MappingProxyType({}),
    store_type: str | None = None,
) -> ModuleOp:
    """Return the recorded step as a module: forward, loss, and in training backward and updates.

    algorithms: update of each parameter, by PyTorch's name; parameters without one, or without a
        gradient, are not updated.
    outputs: values for the host, each under its `output_name`.
    clipping: limits of the gradients, if the recording does not clip them.
    scaling: of the loss.
    names_values: values have the names of `value_name`, which passes preserve.
    earlier_updates: counts of parameters that some steps have not updated.
    store_type: of the model's store, whose weights of another type are cast; None for the widest
        of the recording's weights.

    Parameters and buffers have the names of `stored_name`.

    Raises: CaptureError, with the user's line, for an operator or option that is not supported
    """
    importer = _Importer(recording, run_mode, scaling, names_values, store_type)
    return importer.module_of(algorithms, outputs, clipping, earlier_updates)


def value_name(ref: Ref, operator: str) -> str:
    """Return the name in CIRH of an operator's result."""
    return f"{RECORDED}{ref.number}_{identifier(operator)}"


def masks_in(recording: Recording) -> Mapping[int, SSAValue]:
    """Return the dropout masks of forward, by the number of their operator."""
    made = _Importer(recording, RunMode.TRAIN)
    made.forward()
    return made.drawn


class _Importer:
    def __init__(
        self,
        recording: Recording,
        run_mode: RunMode,
        scaling: LossScaling | None = None,
        names_values: bool = False,
        store_type: str | None = None,
    ) -> None:
        self._recording = recording
        self._names_values = names_values
        self._run_mode = run_mode
        self._scaling = scaling if run_mode is RunMode.TRAIN else None
        precision = float_type_of(recording)  # which refuses 16 bits
        self._store_type = precision = store_type or precision
        self._module = new_module(precision, run_mode)
        self._source = SourceLine()
        builder = Builder(InsertPoint.at_end(self._module.body.block), locate=self._source.location)
        self._emission = Emission(builder, precision)
        self._builder = builder
        self._values: dict[Ref, Any] = {}  # values of CIRH, some of them BackwardOnly
        self._weights: dict[Ref, SSAValue] = {}  # in the store's type
        self._constants: dict[Ref, GraphLeaf] = {}
        self._script_tensors = 0

    def module_of(
        self,
        algorithms: Mapping[str, Algorithm],
        outputs: Sequence[Ref],
        clipping: Clipping,
        earlier_updates: Mapping[str, StepNumberAttr],
    ) -> ModuleOp:
        recording = self._recording
        backward = self.forward(outputs)
        self._emit_outputs(outputs)
        if recording.loss is not None:
            with self._source.attributed(recording.loss_line, "backward()"):
                loss = self._emission.view(self._value(recording.loss), ())
                self._builder.effect(LossOp, loss)
        if self._run_mode is RunMode.TRAIN:
            for number in sorted(backward - dead_gradient_operators(recording, outputs)):
                self._emit_operator(number, recording.operators[number])
            self._emit_outputs(outputs)
            self._emit_updates(algorithms, clipping, earlier_updates)
        self._module.verify()
        return self._module

    def forward(self, outputs: Sequence[Ref] = ()) -> set[int]:
        """Emit all that precedes the backward pass; return the numbers of the other operators.

        Small integers that only the host reads are omitted, unless they are outputs.
        """
        for leaf in (*self._recording.leaves, *self._recording.host_leaves):
            with self._source.attributed(user_line(), f"{leaf.source} {leaf.name}"):
                self._leaf(leaf)
        backward = backward_operators(self._recording, is_scaled=self._scaling is not None)
        left_out = host_only_operators(self._recording, outputs)
        for number, op in enumerate(self._recording.operators):
            if number not in backward and number not in left_out:
                self._emit_operator(number, op)
        return backward

    @property
    def drawn(self) -> Mapping[int, SSAValue]:
        """Dropout masks by the number of their operator."""
        return self._emission.drawn

    def _leaf(self, leaf: GraphLeaf) -> None:
        kind = self._recording.kind(leaf.value)
        if leaf.source is LeafSource.CONSTANT:
            self._constants[leaf.value] = leaf  # emit_operator where it is first read
            return
        if leaf.source in (LeafSource.INPUT, LeafSource.SCRIPT):
            small = kind.dtype in SMALL
            declared = tensor_type(kind.shape, SMALL_AS if small else name_of(kind.dtype))
            value = self._input(leaf, declared)
        else:
            value = self._stored(leaf)
        self._values[leaf.value] = value

    def _input(self, leaf: GraphLeaf, declared: Any) -> SSAValue:
        if leaf.source is LeafSource.INPUT:
            value = self._builder.leaf(InputOp, declared, symbol=leaf.name)
            value.name_hint = identifier(leaf.name)
            return value
        name = f"script_{self._script_tensors}"
        self._script_tensors += 1
        value = self._builder.leaf(InputOp, declared, symbol=name, from_script=True)
        value.name_hint = name
        return value

    def _stored(self, leaf: GraphLeaf) -> SSAValue:
        """Return a weight in PyTorch's type."""
        name, of_torch = stored_name(leaf.name), self._recording.kind(leaf.value)
        declared = tensor_type(of_torch.shape, self._store_type)
        kind: type[StoredOp] = ParameterOp if leaf.source is LeafSource.PARAMETER else StateOp
        with self._builder.in_scope(name.rpartition("/")[0]):
            weight = self._builder.leaf(kind, declared, symbol=name, initializer=_ZEROS)
            weight.name_hint = identifier(name)  # need not be unique
            self._weights[leaf.value] = weight
            return self._emission.cast(weight, name_of(of_torch.dtype))

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
                arguments, keywords = tree_map(_as_atens, (arguments, keywords))
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
        arguments, keywords = tree_map(self._argument, (op.arguments, dict(op.keywords)))
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
            self._emission, op, lambda ref: _as_atens(self._value(ref)), self._recording.kind
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
                return emit_operator(self._emission, op.name, (_as_atens(given), *others), more)
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
            self._values[ref] = value
            if isinstance(value, BackwardOnly):
                continue
            kind = self._recording.kind(ref)
            is_view = op.name in VIEWS and kind.dtype in SMALL
            name = SMALL_AS if is_view else name_of(real_type(kind.dtype))
            expected = tensor_type(kind.shape, name)
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

    def _emit_outputs(self, wanted: Sequence[Ref]) -> None:
        """Emit outputs for the values that are computed and not an output yet."""
        given = {op.symbol.data for op in self._module.ops if isinstance(op, OutputOp)}
        for value in wanted:
            if isinstance(self._values.get(value), Complex):
                raise CaptureError(
                    f"{self._recording.maker[value].line}: complex numbers are not available to "
                    "the loop: return x.real and x.imag, or torch.view_as_real(x)"
                )
            if value in self._values and output_name(value) not in given:
                made = self._recording.maker.get(value)
                with self._source.attributed(made.line if made else user_line(), "output"):
                    found = _as_atens(self._values[value])
                self._builder.effect(OutputOp, found, symbol=output_name(value))
                given.add(output_name(value))

    def _emit_updates(
        self,
        algorithms: Mapping[str, Algorithm],
        limits: Clipping,
        earlier: Mapping[str, StepNumberAttr],
    ) -> None:
        recording = self._recording
        parameters = {leaf.name: leaf for leaf in recording.of(LeafSource.PARAMETER)}
        trained = [n for n in parameters if n in algorithms and n in recording.gradients]
        clipping = clipping_of(recording, trained)
        if missing := [n for n in recording.without_gradient if n in algorithms]:
            log.warning(
                f"{user_line()}: no gradient for {', '.join(missing)}, on which the loss does not "
                "depend: they are not updated"
            )
        gradients = clipping.gradients if clipping else recording.gradients
        options: dict[str, Any] = {**(clipping.limits if clipping else limits).options()}
        if self._scaling is not None:
            require_unedited(recording, gradients, trained)
            options["loss_scaling"] = rule_of(self._scaling)
        for name in trained:
            own = {"earlier_updates": earlier[name]} if name in earlier else {}
            scope = stored_name(name).rpartition("/")[0]
            with (
                self._source.attributed(user_line(), f"parameter {name}"),
                self._builder.in_scope(scope),
            ):
                self._builder.effect(
                    ApplyGradientOp,
                    self._weights[parameters[name].value],
                    self._emission.cast(self._value(gradients[name]), self._store_type),
                    algorithm=algorithms[name],
                    **options,
                    **own,
                )
        for leaf in recording.of(LeafSource.BUFFER):
            if leaf.name in recording.written:
                value = self._values[recording.written[leaf.name]]
                value = self._emission.cast(value, self._store_type)
                self._builder.effect(AssignOp, self._weights[leaf.value], value)


def _as_atens(given: Any) -> Any:
    """Return a value as another operator than its own backward reads it. Raises: Unsupported"""
    if not isinstance(given, BackwardOnly):
        return given
    if given.emit is None:
        raise Unsupported(
            "the saved statistics of a norm are available only to the backward pass: compute mean "
            "and variance in forward"
        )
    return given.emit()
