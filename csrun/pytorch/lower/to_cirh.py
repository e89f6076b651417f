"""Lowering of a Recording to CIRH: a module for the compiler that contains the backward pass."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

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
)
from csrun.cirh.ops.model import (
    Distribution,
    InitializerAttr,
    InputOp,
    LossOp,
    OutputOp,
    ParameterOp,
    StateOp,
    StoredOp,
)
from csrun.cirh.types import tensor_type
from csrun.executable.loss_scale import LossScaling
from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.lower.clipping import clipping_of
from csrun.pytorch.lower.loss_scaling import require_unedited, rule_of
from csrun.pytorch.lower.operator_lowering import OperatorLowering, as_atens
from csrun.pytorch.lower.operator_selection import (
    backward_operators,
    dead_gradient_operators,
    float_type_of,
    host_only_operators,
)
from csrun.pytorch.lower.source_line import SourceLine
from csrun.pytorch.operators import Emission
from csrun.pytorch.operators.base import (
    Complex,
    name_of,
)
from csrun.pytorch.record.recording import (
    GraphLeaf,
    LeafSource,
    Recording,
    Ref,
)
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


def masks_in(recording: Recording) -> Mapping[int, SSAValue]:
    """Return the dropout masks of forward, by the number of their operator."""
    made = _Importer(recording, RunMode.TRAIN)
    made.forward()
    return made.drawn


class _Importer(OperatorLowering):
    def __init__(
        self,
        recording: Recording,
        run_mode: RunMode,
        scaling: LossScaling | None = None,
        names_values: bool = False,
        store_type: str | None = None,
    ) -> None:
        self._run_mode = run_mode
        precision = float_type_of(recording)  # which refuses 16 bits
        self._store_type = precision = store_type or precision
        self._module = new_module(precision, run_mode)
        source = SourceLine()
        builder = Builder(InsertPoint.at_end(self._module.body.block), locate=source.location)
        scaling = scaling if run_mode is RunMode.TRAIN else None
        super().__init__(recording, Emission(builder, precision), source, scaling, names_values)
        self._weights: dict[Ref, SSAValue] = {}  # in the store's type
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

    def _leaf(self, leaf: GraphLeaf) -> None:
        kind = self._recording.kind(leaf.value)
        if leaf.source is LeafSource.CONSTANT:
            self._constants[leaf.value] = leaf  # emit_operator where it is first read
            return
        if leaf.source in (LeafSource.INPUT, LeafSource.SCRIPT):
            declared = tensor_type(kind.shape, name_of(kind.dtype))
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
                    found = as_atens(self._values[value])
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
