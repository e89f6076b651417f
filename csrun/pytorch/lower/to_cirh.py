"""A Recording to CIRH: a module that the compiler takes, its backward pass in it already."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._pytree import tree_map
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.exceptions import VerifyException

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module
from csrun.cirh.algorithms import Algorithm
from csrun.cirh.ops.learning import ApplyGradientOp, AssignOp
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
from csrun.pytorch.errors import CaptureError, note_bug, user_line
from csrun.pytorch.lower.clipping import clipping_of
from csrun.pytorch.lower.decomposition import decomposed, has_weights, is_of_parts
from csrun.pytorch.operators import EMITTERS, Emission, emitted
from csrun.pytorch.operators.base import SMALL, SMALL_AS, UNUSED, Private, Unsupported, name_of
from csrun.pytorch.operators.views import EMITTERS as VIEWS
from csrun.pytorch.record.recording import Leaf, Operator, Recording, Ref, Source
from csrun.records.torch_names import stored_name

log = logging.getLogger("csrun")

_ZEROS = InitializerAttr.of(Distribution.ZEROS)  # first values are the user's, written to the store


def output_name(value: Ref) -> str:
    """The name of the output that a value of the recording is."""
    return f"value_{value.number}"


def module_of(
    recording: Recording,
    algorithms: Mapping[str, Algorithm],
    run_mode: RunMode = RunMode.TRAIN,
    outputs: Sequence[Ref] = (),
) -> ModuleOp:
    """The recorded step as a module: forward, loss, and in training backward and the updates.

    algorithms: how each parameter is updated, by PyTorch's name; those without one, or without a
    gradient, stay as they are. outputs: values that the host gets, each under its `output_name`.
    The passes of gradient and fusion find nothing to do; updates become their algorithms' in the
    pass of these. Parameters and buffers have the names that `stored_name` gives.

    Raises: CaptureError, with the user's line, for an operator or an option that is not there
    """
    return _Import(recording, run_mode).module_of(algorithms, outputs)


def masks_in(recording: Recording) -> Mapping[int, SSAValue]:
    """The masks that forward draws, by the number of the operator that drops."""
    made = _Import(recording, RunMode.TRAIN)
    made.forward()
    return made.drawn


class _Import:
    def __init__(self, recording: Recording, run_mode: RunMode) -> None:
        self._recording = recording
        self._run_mode = run_mode
        precision = self._precision()
        self._module = new_module(precision, run_mode)
        self._line = ""
        builder = Builder(InsertPoint.at_end(self._module.body.block), locate=self._location)
        self._emission = Emission(builder, precision)
        self._builder = builder
        self._values: dict[Ref, Any] = {}  # values of CIRH, some of them Private
        self._constants: dict[Ref, Leaf] = {}

    def module_of(self, algorithms: Mapping[str, Algorithm], outputs: Sequence[Ref]) -> ModuleOp:
        recording = self._recording
        backward = self.forward()
        self._outputs(outputs)
        if recording.loss is not None:
            with self._located(recording.loss_line, "backward()"):
                self._builder.effect(LossOp, self._value(recording.loss))
        if self._run_mode is RunMode.TRAIN:
            for number in sorted(backward):
                self._operator(number, recording.operators[number])
            self._outputs(outputs)
            self._updates(algorithms)
        self._module.verify()
        return self._module

    def forward(self) -> set[int]:
        """Write all that does not need the way back; gives the numbers of the other operators."""
        for leaf in self._recording.leaves:
            with self._located(user_line(), f"{leaf.source} {leaf.name}"):
                self._leaf(leaf)
        backward = self._of_backward()
        for number, op in enumerate(self._recording.operators):
            if number not in backward:
                self._operator(number, op)
        return backward

    @property
    def drawn(self) -> Mapping[int, SSAValue]:
        """Masks, by the number of their operator."""
        return self._emission.drawn

    def _precision(self) -> str:
        """The one type of all floats that come in."""
        found = {
            str(leaf.tensor.dtype).removeprefix("torch."): f"{leaf.source} {leaf.name}"
            for leaf in self._recording.leaves
            if leaf.source is not Source.CONSTANT and leaf.tensor.is_floating_point()
        }
        if len(found) > 1 or not set(found) <= {"float32", "float64"}:
            got = " and ".join(f"{kind} ({name})" for kind, name in sorted(found.items()))
            raise CaptureError(
                f"{user_line()}: parameters, buffers and batches must all be float32 or all "
                f"float64, got {got}: cast the model, or the batches in the dataset"
            )
        return next(iter(found), "float32")

    def _of_backward(self) -> set[int]:
        """The operators that need the way back, by number: all others are computed before it."""
        recording, found = self._recording, set[int]()
        late: set[Ref] = set()
        if recording.loss is None:
            return found
        for number, op in enumerate(recording.operators[recording.forward_end :]):
            place = number + recording.forward_end
            if op.is_backward or any(operand in late for operand in op.operands):
                found.add(place)
                late.update(r for r in op.results if r is not None)
        return found

    def _leaf(self, leaf: Leaf) -> None:
        kind = self._recording.kind(leaf.value)
        if leaf.source is Source.CONSTANT:
            self._constants[leaf.value] = leaf  # written where it is first read
            return
        if leaf.source is Source.INPUT:
            small = kind.dtype in SMALL
            declared = tensor_type(kind.shape, SMALL_AS if small else name_of(kind.dtype))
            value = self._builder.leaf(InputOp, declared, symbol=leaf.name)
            value.name_hint = leaf.name
        else:
            value = self._stored(leaf, tensor_type(kind.shape, name_of(kind.dtype)))
        self._values[leaf.value] = value

    def _stored(self, leaf: Leaf, declared: Any) -> SSAValue:
        name = stored_name(leaf.name)
        kind: type[StoredOp] = ParameterOp if leaf.source is Source.PARAMETER else StateOp
        with self._builder.in_scope(name.rpartition("/")[0]):
            value = self._builder.leaf(kind, declared, symbol=name, initializer=_ZEROS)
        hint = re.sub(r"\W", "_", name, flags=re.ASCII)  # which need not be unique
        value.name_hint = hint if hint.isidentifier() else f"layer_{hint}"
        return value

    def _operator(self, number: int, op: Operator) -> None:
        with self._located(op.line, op.name, op.scope), self._builder.in_scope(op.scope):
            if op.name == "aten.scatter.src" and not op.is_backward:
                raise Unsupported(
                    "indices may repeat, and PyTorch does not define which value is kept: use "
                    "scatter_add"
                )
            self._emission.place = number
            self._emission.forward = -1 if op.forward is None else op.forward
            self._emission.kinds = tuple(
                self._recording.kind(r) for r in op.results if r is not None
            )
            arguments, keywords = tree_map(self._argument, (op.arguments, dict(op.keywords)))
            keywords = {name: given for name, given in keywords.items() if name not in UNUSED}
            if self._is_private(op):
                self._bind(op, [Private(arguments[0].value)])
                return
            found = self._emitted(op, arguments, keywords)
            self._bind(op, found if isinstance(found, tuple) else (found,))

    def _emitted(self, op: Operator, arguments: Any, keywords: Any) -> Any:
        """An operator's results, by its emitter; else as PyTorch takes it apart."""
        is_known = op.name in EMITTERS
        if is_known and not has_weights(op) and not is_of_parts(op, arguments):
            return emitted(self._emission, op.name, arguments, keywords)
        found = decomposed(self._emission, op, self._value, self._recording.kind)
        if found is None:
            raise Unsupported("operator not supported: rewrite the line with other operators")
        return found

    def _is_private(self, op: Operator) -> bool:
        """Whether it is a view of what only a way back may read.

        Raises: Unsupported for another reader of that
        """
        if not any(isinstance(self._value(ref), Private) for ref in op.operands):
            return False
        if not op.is_backward and op.name not in VIEWS:
            raise Unsupported(
                "max-pooling indices and the statistics that a norm saves are only available to "
                "the backward pass: leave them out of the computation"
            )
        return op.name in VIEWS

    def _bind(self, op: Operator, found: Sequence[SSAValue | Private | None]) -> None:
        """Give results their values, and check that they are of the kind that PyTorch says."""
        for ref, value in zip(op.results, found, strict=False):
            if ref is None or value is None:
                continue
            if isinstance(value, Private):
                self._values[ref] = value
                continue
            kind = self._recording.kind(ref)
            is_view = op.name in VIEWS and kind.dtype in SMALL
            expected = tensor_type(kind.shape, SMALL_AS if is_view else name_of(kind.dtype))
            assert value.type == expected, f"{op.name} of {op.line}: {value.type}, not {expected}"
            self._values[ref] = value

    def _argument(self, argument: Any) -> Any:
        return self._value(argument) if isinstance(argument, Ref) else argument

    def _value(self, ref: Ref) -> Any:
        if ref not in self._values:
            values = self._constants[ref].tensor.detach()
            name_of(values.dtype)
            self._values[ref] = self._emission.constant(values.numpy())
        return self._values[ref]

    def _outputs(self, wanted: Sequence[Ref]) -> None:
        """Those that are there and that nobody has got yet."""
        given = {op.symbol.data for op in self._module.ops if isinstance(op, OutputOp)}
        for value in wanted:
            if isinstance(self._values.get(value), Private):
                raise CaptureError(
                    f"{self._recording.maker[value].line}: max-pooling indices are not available "
                    "to the loop: leave them out of what forward returns"
                )
            if value in self._values and output_name(value) not in given:
                self._builder.effect(OutputOp, self._values[value], symbol=output_name(value))
                given.add(output_name(value))

    def _updates(self, algorithms: Mapping[str, Algorithm]) -> None:
        recording = self._recording
        parameters = {leaf.name: leaf for leaf in recording.of(Source.PARAMETER)}
        trained = [n for n in parameters if n in algorithms and n in recording.gradients]
        clipping = clipping_of(recording, trained)
        if missing := [n for n in recording.without_gradient if n in algorithms]:
            log.warning(
                f"{user_line()}: no gradient for {', '.join(missing)}, on which the loss does not "
                "depend: they are not updated"
            )
        gradients = clipping.gradients if clipping else recording.gradients
        options = {"clip_norm": clipping.norm} if clipping else {}
        for name in trained:
            scope = stored_name(name).rpartition("/")[0]
            with self._located(user_line(), f"parameter {name}"), self._builder.in_scope(scope):
                self._builder.effect(
                    ApplyGradientOp,
                    self._values[parameters[name].value],
                    self._value(gradients[name]),
                    algorithm=algorithms[name],
                    **options,
                )
        for leaf in recording.of(Source.BUFFER):
            if leaf.name in recording.written:
                value = self._values[recording.written[leaf.name]]
                self._builder.effect(AssignOp, self._values[leaf.value], value)

    @contextmanager
    def _located(self, line: str, what: str, scope: str = "") -> Iterator[None]:
        """Raises: CaptureError with the user's line for what csrun has not

        Any other error is a bug: it keeps its traceback and gets a note with line and layer.
        """
        self._line = line
        try:
            yield
        except (Unsupported, VerifyException) as error:
            raise CaptureError(f"{line}: {what}: {error}") from error
        except UsageError:
            raise
        except Exception as error:
            note_bug(error, f"{line}: {what}{f' of layer {scope}' if scope else ''}: ")
            raise

    def _location(self) -> FileLineColLoc:
        file, _, line = self._line.rpartition(":")
        number = int(line) if line.isdigit() else 0
        return FileLineColLoc(StringAttr(file), IntAttr(number), IntAttr(0))
