"""What emitters write with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from xdsl.ir import SSAValue

from csrun.cirh.batch_axes import Dependence, Dependences, dependence_in
from csrun.cirh.builder import Builder
from csrun.cirh.ops.arithmetic import ToCopyOp
from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.ops.model import ConstantOp
from csrun.cirh.ops.shape import ExpandOp, ViewOp
from csrun.cirh.types import dtype_of, is_float, shape_of, tensor_type, type_of
from csrun.pytorch.record.recording import Kind

#: Gets ATen's arguments, values of CIRH in the tensors' places; gives its results in their order.
Emitter = Callable[..., "SSAValue | tuple[SSAValue | Private | None, ...]"]

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
#: Integers that a batch may have, as images do: they may be viewed, compared and made into others.
SMALL, SMALL_AS = frozenset({torch.uint8, torch.int8, torch.int16}), "int32"
#: Where a tensor lies and how: nothing that CIRH's operators are told.
UNUSED = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})


class Unsupported(Exception):  # noqa: N818  the importer makes an error of it, with the user's line
    """What an emitter does not have: an option, a type, a shape; the text says which."""


@dataclass(frozen=True)
class Private:
    """A result that has other numbers than ATen's: the way back of its operator alone reads it."""

    value: SSAValue


class Emission:
    """A module in the making; emitters write to it.

    kinds: what PyTorch says that the results of the operator that is being written are. saved: what
    emitters of functions that are taken whole leave for those of the way back, by the number of the
    forward operator; place and forward are those numbers, of the operator being written. drawn: the
    masks that they draw, by the same number.
    """

    def __init__(self, builder: Builder, precision: str) -> None:
        self.builder = builder
        self.precision = precision
        self.saved: dict[int, Any] = {}
        self.drawn: dict[int, SSAValue] = {}
        self.place = 0
        self.forward = 0
        self.kinds: tuple[Kind, ...] = ()
        self._streams = 0
        self._dependences: Dependences = {}

    def emit(self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain) -> SSAValue:
        """Write an operator and give its first result."""
        return self.builder.emit(kind, *operands, **properties)

    def emit_all(
        self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain
    ) -> tuple[SSAValue, ...]:
        """Write an operator and give all its results."""
        return self.builder.emit_all(kind, *operands, **properties)

    def full(self, value: float, dtype: str, sizes: tuple[int, ...] = ()) -> SSAValue:
        """A tensor of one number."""
        return self.builder.full(float(value), tensor_type(sizes, dtype))

    def view(self, x: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
        """Another shape, row by row."""
        return x if shape(x) == sizes else self.emit(ViewOp, x, shape=sizes)

    def expand(self, x: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
        """Repeated to a shape."""
        return x if shape(x) == sizes else self.emit(ExpandOp, x, shape=sizes)

    def cast(self, x: SSAValue, to: str) -> SSAValue:
        """The same numbers as another type."""
        return x if dtype(x) == to else self.emit(ToCopyOp, x, dtype=to)

    @property
    def dtype(self) -> str:
        """CIRH's name of the first result's element type."""
        return name_of(self.kinds[0].dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The first result's shape."""
        return self.kinds[0].shape

    def constant(self, values: Any) -> SSAValue:
        """An array that is the same in each step."""
        values = np.asarray(values)
        if values.size and (values == values.flat[0]).all():
            return self.full(float(values.flat[0]), values.dtype.name, values.shape)
        declared = tensor_type(values.shape, values.dtype.name)
        return self.builder.leaf(ConstantOp, declared, values=ConstantOp.packed(values))

    def next_stream(self) -> int:
        """A number for the next operator that draws, 0, 1, 2, …"""
        self._streams += 1
        return self._streams - 1

    def dependence(self, value: SSAValue) -> Dependence:
        """How a value depends on the batch."""
        return dependence_in(self._dependences, value)


def shape(x: SSAValue) -> tuple[int, ...]:
    """A value's sizes."""
    return shape_of(type_of(x))


def rank(x: SSAValue) -> int:
    """How many axes it has."""
    return len(shape(x))


def dtype(x: SSAValue) -> str:
    """NumPy's name of its element type."""
    return dtype_of(type_of(x))


def floats(x: SSAValue) -> bool:
    """Whether it is of floats."""
    return is_float(type_of(x))


def axis(dim: int, x: SSAValue) -> int:
    """An axis counted from the first one."""
    return dim % max(rank(x), 1)


def axes(dims: Any, x: SSAValue) -> tuple[int, ...]:
    """Several of them, in order; all where none is named, and of a number, which has none."""
    if not rank(x) or dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(rank(x)))
    given = dims if isinstance(dims, list | tuple) else [dims]
    return tuple(sorted(axis(d, x) for d in given))


def at_least_1d(emitter: Emitter) -> Emitter:
    """An emitter along an axis that takes a number as a row of one, as PyTorch does.

    Its results have the shape of the first one.
    """

    def emit(e: Emission, x: SSAValue, *arguments: Any, **options: Any) -> Any:
        if rank(x):
            return emitter(e, x, *arguments, **options)
        found: Any = emitter(e, *(_row(e, a) for a in (x, *arguments)), **options)
        if isinstance(found, tuple):
            return tuple(e.view(one, e.sizes) for one in found)
        return e.view(found, e.sizes)

    return emit


def _row(e: Emission, argument: Any) -> Any:
    is_number = isinstance(argument, SSAValue) and not rank(argument)
    return e.view(argument, (1,)) if is_number else argument


def name_of(kind: torch.dtype) -> str:
    """CIRH's name of PyTorch's element type. Raises: Unsupported for one that it does not have"""
    if kind not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise Unsupported(f"dtype {kind} is not supported: cast to one of {known}")
    return DTYPES[kind]


def unsupported(rule: str, got: object, remedy: str) -> Unsupported:
    """The refusal of an emitter."""
    return Unsupported(f"{rule}, got {got}: {remedy}")
