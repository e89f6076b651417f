"""Tracing: a model function runs once on traced tensors, which record its operators as CIRH."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Self

import msgspec
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.rewriter import InsertPoint

from csrun.base.half_formats import HalfFormat
from csrun.base.identifier import identifier
from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module, set_storage
from csrun.cirh.batch_axes import Dependence, Dependences, dependence_in
from csrun.cirh.dialect import RUN_MODE
from csrun.cirh.ops.base import CirhOp, Plain, attribute
from csrun.cirh.ops.learning import AssignOp, MinimizeOp
from csrun.cirh.ops.model import (
    InitializerAttr,
    InputOp,
    LossOp,
    OutputOp,
    ParameterOp,
    StateOp,
    StoredOp,
)
from csrun.cirh.ops.padding import ValidSamplesOp
from csrun.cirh.types import tensor_type
from csrun.nn.errors import TraceError, located, user_line, user_location
from csrun.nn.optimizer import TrainOp
from csrun.nn.summary import SummaryKind
from csrun.nn.tensor import Tensor

_PART = r"([A-Za-z_][A-Za-z0-9_.]*|[0-9]+)"
LAYER_NAME = re.compile(f"{_PART}(/{_PART})*")
_traced: ContextVar["Tracer"] = ContextVar("traced")  # tracer of the model function that runs


class LayerNames:
    """Unique layer names."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._counts: Counter[str] = Counter()

    def unique(self, base: str) -> str:
        """Return `base`, numbered if it is taken."""
        while True:
            number = self._counts[base]
            self._counts[base] += 1
            name = f"{base}_{number}" if number else base
            if name not in self._given:
                self._given.add(name)
                return name

    def claim(self, name: str) -> str:
        """Reserve a name chosen by the user.

        Raises: TraceError if it is taken
        """
        if name in self._given:
            raise TraceError(
                f"{user_line()}: layer name {name!r} is already used: choose another, or omit name"
            )
        self._given.add(name)
        return name


def require_name(name: str) -> str:
    """Return a layer or scope name.

    Raises: TraceError if it is malformed
    """
    if not LAYER_NAME.fullmatch(name):
        raise TraceError(
            f"{user_line()}: a layer name must consist of letters, digits, '_' and '.', parts "
            f"separated by '/', each a number or starting with a letter or '_', got {name!r}"
        )
    return name


@contextmanager
def scope(name: str | int) -> Iterator[str]:
    """Prefix the names of the layers created inside with `<name>/`; scopes nest.

    Yields the full name of the scope. If a scope is entered again, numbering continues.

    Raises: TraceError for a malformed name, or outside of a model function
    """
    tracer = _traced.get(None)
    if tracer is None:
        raise TraceError(f"{user_line()}: nn.scope({name!r}) is only valid inside a model function")
    with tracer.in_scope(str(name)) as full_name:
        yield full_name


class Tracer:
    """Trace of one model, to which layers and functions add the operators on its tensors."""

    def __init__(self, precision: str = "float32", storage: HalfFormat | None = None) -> None:
        self.precision = precision
        self.names = LayerNames()
        self.module = new_module(precision, RunMode.PREDICT)
        if storage is not None:
            set_storage(self.module, storage)
        self.builder = Builder(InsertPoint.at_end(self.module.body.block), locate=user_location)
        self._parameters: set[str] = set()
        self._streams = count()
        self._dependences: Dependences = {}
        self.summaries: dict[str, tuple[SummaryKind, Tensor]] = {}

    def __enter__(self) -> Self:
        """Make this the tracer of nn.scope inside the with block."""
        self._before = _traced.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _traced.reset(self._before)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """Declare an array of the batch; arrays are numbered in the order of the calls.

        Shapes: static, batch first
        """
        with located(f"input {name}"):
            kind = tensor_type(shape, dtype)
            value = self.builder.leaf(InputOp, kind, symbol=name)
        value.name_hint = identifier(name)
        return Tensor(self, value)

    def parameter(self, name: str, shape: Sequence[int], initializer: InitializerAttr) -> Tensor:
        """Declare a parameter of the current layer, named `<layer>/<name>`.

        Raises: TraceError if the name is taken
        """
        return self._stored(ParameterOp, name, shape, initializer)

    def state(self, name: str, shape: Sequence[int], initializer: InitializerAttr) -> Tensor:
        """Declare a non-trained state of the current layer, updated in training by `assign`.

        Raises: TraceError if the name is taken
        """
        return self._stored(StateOp, name, shape, initializer)

    def assign(self, state: Tensor, value: Tensor) -> None:
        """Set the next value of a state; ignored outside of training."""
        self.builder.effect(AssignOp, state.value, value.value)

    def _stored(
        self,
        kind: type[StoredOp],
        name: str,
        shape: Sequence[int],
        initializer: InitializerAttr,
    ) -> Tensor:
        full_name = f"{self.builder.scope}/{name}"
        if full_name in self._parameters:
            raise TraceError(
                f"{user_line()}: parameter name {full_name!r} is already used: choose another"
            )
        self._parameters.add(full_name)
        declared = tensor_type(shape, self.precision)
        value = self.builder.leaf(kind, declared, symbol=full_name, initializer=initializer)
        value.name_hint = identifier(full_name)
        return Tensor(self, value)

    def emit(self, kind: type[CirhOp], *operands: Tensor, **properties: Plain) -> Tensor:
        """Add an operator and return its first result.

        Raises: TraceError for a tensor of another model, VerifyException for mismatched shapes
        """
        return self.emit_all(kind, *operands, **properties)[0]

    def emit_all(
        self, kind: type[CirhOp], *operands: Tensor, **properties: Plain
    ) -> tuple[Tensor, ...]:
        """Add an operator and return all its results."""
        for operand in operands:
            if not isinstance(operand, Tensor) or operand.tracer is not self:
                raise TraceError(f"{user_line()}: expected a tensor of this model, got {operand!r}")
        results = self.builder.emit_all(kind, *(o.value for o in operands), **properties)
        return tuple(Tensor(self, value) for value in results)

    def dependence(self, tensor: Tensor) -> Dependence:
        """Return how a tensor depends on the batch."""
        return dependence_in(self._dependences, tensor.value)

    def valid_samples(self) -> Tensor:
        """Number of samples in this shard of the batch, without padding."""
        return Tensor(self, self.builder.leaf(ValidSamplesOp, tensor_type((), "int64")))

    def next_stream(self) -> int:
        """Return the stream number of the next random operator: 0, 1, 2, …"""
        return next(self._streams)

    @contextmanager
    def layer(self, base: str, name: str | None) -> Iterator[str]:
        """Enter the scope of a layer, named by the user or else `base` with a number.

        The name is relative to the current scope.
        """
        if name is None:
            scope = self.names.unique(self._qualify(base))
        else:
            scope = self.names.claim(self._qualify(require_name(name)))
        with self.builder.in_scope(scope), located(f"layer {scope}"):
            yield scope

    @contextmanager
    def in_scope(self, name: str) -> Iterator[str]:
        """Enter a scope named by the user."""
        scope = self._qualify(require_name(name))
        with self.builder.in_scope(scope):
            yield scope

    def _qualify(self, name: str) -> str:
        return f"{self.builder.scope}/{name}" if self.builder.scope else name

    def finish(
        self,
        run_mode: RunMode,
        loss: Tensor | None,
        train_op: TrainOp | None,
        outputs: Sequence[tuple[str, Tensor]],
    ) -> ModuleOp:
        """Add the results and return the verified module, the compiler's input.

        The train_op may minimize another scalar than the loss, which is reported.

        Raises: TraceError if training has no loss or no train_op, or the loss is not a scalar
        """
        self.module.attributes[RUN_MODE] = attribute(run_mode.value)
        with located("the model's results"):
            if loss is not None:
                self.builder.effect(LossOp, loss.value)
            for name, tensor in outputs:
                self.builder.effect(OutputOp, tensor.value, symbol=name)
            if run_mode is RunMode.TRAIN:
                self._minimize(loss, train_op)
        self.module.verify()
        return self.module

    def _minimize(self, loss: Tensor | None, train_op: TrainOp | None) -> None:
        if loss is None or train_op is None:
            missing = "a loss" if loss is None else "a train_op, as from SGD(...).minimize(loss)"
            raise TraceError(f"a model in mode train needs {missing}")
        options: dict[str, Plain] = {**train_op.clipping.options()}
        if train_op.loss_scaling is not None:
            numbers = msgspec.structs.asdict(train_op.loss_scaling)
            options["loss_scaling"] = DictionaryAttr({k: attribute(v) for k, v in numbers.items()})
        algorithm = train_op.algorithm
        self.builder.effect(MinimizeOp, train_op.loss.value, algorithm=algorithm, **options)
