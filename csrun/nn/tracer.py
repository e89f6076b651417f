"""Tracing: a model function runs once, and what it computes is written down as CIRH."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Self

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint

from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module
from csrun.cirh.batch_axes import Dependence, Dependences, dependence_in
from csrun.cirh.dialect import RUN_MODE
from csrun.cirh.ops.base import CirhOp, Plain, attribute
from csrun.cirh.ops.batch import ValidSamplesOp
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
from csrun.cirh.types import tensor_type
from csrun.nn.errors import TraceError, located, user_line, user_location
from csrun.nn.optimizer import TrainOp
from csrun.nn.summary import SummaryKind
from csrun.nn.tensor import Tensor

_PART = r"([A-Za-z_][A-Za-z0-9_.]*|[0-9]+)"
LAYER_NAME = re.compile(f"{_PART}(/{_PART})*")
_traced: ContextVar["Tracer"] = ContextVar("traced")  # whose model is being built


class LayerNames:
    """Hands out each layer name once."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._counts: Counter[str] = Counter()

    def unique(self, base: str) -> str:
        """`base`, with a number when it is taken."""
        while True:
            number = self._counts[base]
            self._counts[base] += 1
            name = f"{base}_{number}" if number else base
            if name not in self._given:
                self._given.add(name)
                return name

    def claim(self, name: str) -> str:
        """A name that the user chose.

        Raises: TraceError when it is taken
        """
        if name in self._given:
            raise TraceError(
                f"{user_line()}: layer name {name!r} is already used; choose another, or omit name"
            )
        self._given.add(name)
        return name


def well_formed(name: str) -> str:
    """A part of a name that the user chose. Raises: TraceError when it is malformed"""
    if not LAYER_NAME.fullmatch(name):
        raise TraceError(
            f"{user_line()}: a name must be letters, digits, '_', '.' and '/', each part a number "
            f"or begun by a letter or '_', got {name!r}"
        )
    return name


@contextmanager
def scope(name: str | int) -> Iterator[str]:
    """Layers that are made inside are named `<name>/<their own name>`; scopes nest.

    Gives the scope's whole name. A scope may be entered again: its layers are numbered on.

    Raises: TraceError for a malformed name, or where no model is being built
    """
    tracer = _traced.get(None)
    if tracer is None:
        raise TraceError(f"{user_line()}: nn.scope({name!r}) must stand in a model function")
    with tracer.in_scope(str(name)) as whole:
        yield whole


class Tracer:
    """One model's trace; layers and functions of csrun.nn write to the tracer of their operands."""

    def __init__(self, precision: str = "float32") -> None:
        self.precision = precision
        self.names = LayerNames()
        self.module = new_module(precision, RunMode.PREDICT)
        self.builder = Builder(InsertPoint.at_end(self.module.body.block), locate=user_location)
        self._parameters: set[str] = set()
        self._streams = count()
        self._dependences: Dependences = {}
        self.summaries: dict[str, tuple[SummaryKind, Tensor]] = {}

    def __enter__(self) -> Self:
        """The with block marks where the model is built."""
        self._before = _traced.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _traced.reset(self._before)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """One array of the batch, in the order of the calls.

        Shapes: the static shape, the batch first
        """
        with located(f"input {name}"):
            kind = tensor_type(shape, dtype)
            value = self.builder.leaf(InputOp, kind, symbol=name)
        value.name_hint = re.sub(r"[^A-Za-z0-9_]", "_", name)
        return Tensor(self, value)

    def parameter(self, name: str, shape: Sequence[int], initializer: InitializerAttr) -> Tensor:
        """A weight tensor of the layer in whose scope this is called, named `<layer>/<name>`.

        Raises: TraceError for a name that is taken
        """
        return self._stored(ParameterOp, name, shape, initializer)

    def state(self, name: str, shape: Sequence[int], initializer: InitializerAttr) -> Tensor:
        """What training changes by `assign`, named and kept as the layer's parameters are.

        Raises: TraceError for a name that is taken
        """
        return self._stored(StateOp, name, shape, initializer)

    def assign(self, state: Tensor, value: Tensor) -> None:
        """The state's next value; it has an effect in training alone."""
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
                f"{user_line()}: parameter names must be unique, {full_name!r} is taken"
            )
        self._parameters.add(full_name)
        declared = tensor_type(shape, self.precision)
        value = self.builder.leaf(kind, declared, symbol=full_name, initializer=initializer)
        value.name_hint = full_name.replace("/", "_")
        return Tensor(self, value)

    def emit(self, kind: type[CirhOp], *operands: Tensor, **properties: Plain) -> Tensor:
        """Write an operator down and give its first result.

        Raises: TraceError for a tensor of another model, VerifyException when shapes do not fit
        """
        return self.emit_all(kind, *operands, **properties)[0]

    def emit_all(
        self, kind: type[CirhOp], *operands: Tensor, **properties: Plain
    ) -> tuple[Tensor, ...]:
        """Write an operator down and give all its results."""
        for operand in operands:
            if not isinstance(operand, Tensor) or operand.tracer is not self:
                raise TraceError(f"{user_line()}: expected a tensor of this model, got {operand!r}")
        results = self.builder.emit_all(kind, *(o.value for o in operands), **properties)
        return tuple(Tensor(self, value) for value in results)

    def dependence(self, tensor: Tensor) -> Dependence:
        """How a tensor depends on the batch."""
        return dependence_in(self._dependences, tensor.value)

    def valid_samples(self) -> Tensor:
        """How many samples of this part of the batch count: those that fill it up do not."""
        return Tensor(self, self.builder.leaf(ValidSamplesOp, tensor_type((), "int64")))

    def next_stream(self) -> int:
        """A number for the next operator that draws, 0, 1, 2, …"""
        return next(self._streams)

    @contextmanager
    def layer(self, base: str, name: str | None) -> Iterator[str]:
        """The scope of a layer; `name` is the user's, `base` is numbered when there is none.

        Both are within the scope that this is called in.
        """
        if name is None:
            scope = self.names.unique(self._nested(base))
        else:
            scope = self.names.claim(self._nested(well_formed(name)))
        with self.builder.in_scope(scope), located(f"layer {scope}"):
            yield scope

    @contextmanager
    def in_scope(self, name: str) -> Iterator[str]:
        """A scope of the user's around layers."""
        scope = self._nested(well_formed(name))
        with self.builder.in_scope(scope):
            yield scope

    def _nested(self, name: str) -> str:
        return f"{self.builder.scope}/{name}" if self.builder.scope else name

    def finish(
        self,
        run_mode: RunMode,
        loss: Tensor | None,
        train_op: TrainOp | None,
        outputs: Sequence[tuple[str, Tensor]],
    ) -> ModuleOp:
        """The module: all that the compiler needs to know of the model.

        Raises: TraceError when training lacks a loss or a train_op, or the loss is not one number
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
            missing = "a loss" if loss is None else "a train_op, as of SGD(...).minimize(loss)"
            raise TraceError(f"a model in mode train needs {missing}")
        if train_op.loss.value is not loss.value:
            raise TraceError("the train_op must minimize the model's loss, it minimizes another")
        clipping = {} if train_op.clip_norm is None else {"clip_norm": train_op.clip_norm}
        algorithm = train_op.algorithm
        self.builder.effect(MinimizeOp, loss.value, algorithm=algorithm, **clipping)
