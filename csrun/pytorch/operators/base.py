"""Emission: the builder that emitters write to, with helpers on shapes and types."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
import torch
from xdsl.ir import SSAValue

from csrun.cirh.batch_axes import Dependence, Dependences, dependence_in
from csrun.cirh.builder import Builder
from csrun.cirh.ops.arithmetic import AddOp, SubOp, ToCopyOp
from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.rounding import RemainderOp
from csrun.cirh.ops.shape import ExpandOp, PermuteOp, ViewOp
from csrun.cirh.types import dtype_of, is_float, shape_of, tensor_type, type_of
from csrun.pytorch.record.recording import TensorKind

#: Takes ATen's arguments, with CIRH values for tensors; returns ATen's results in order.
Emitter = Callable[..., "SSAValue | Complex | tuple[SSAValue | Complex | BackwardOnly | None, ...]"]

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.uint8: "int32",
    torch.int8: "int32",
    torch.int16: "int32",
}
#: Types of the parts of complex numbers.
REAL_TYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
#: Small integers, such as pixels, which are computed as int32 and wrapped to their range.
SMALL = frozenset({torch.uint8, torch.int8, torch.int16})
#: Options about memory, which CIRH ignores.
UNUSED = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})


class Unsupported(Exception):  # noqa: N818  the importer adds the user's line and raises CaptureError
    """An option, type or shape that an emitter does not support."""


@dataclass(frozen=True)
class Complex:
    """A complex result: its real and imaginary parts, of one shape."""

    real: SSAValue
    imag: SSAValue

    @property
    def parts(self) -> tuple[SSAValue, SSAValue]:
        """Real and imaginary part."""
        return self.real, self.imag


#: Backward operators that read a `BackwardOnly` of their forward.
READERS_OF_SAVED = frozenset(
    f"aten.{name}_backward.default"
    for name in ("log_sigmoid", "max_pool2d_with_indices", "native_batch_norm")
)


@dataclass(frozen=True)
class BackwardOnly:
    """A result whose values differ from ATen's, as its operator's backward reads it.

    emit: emits ATen's values for another reader; None if there are none.
    """

    value: SSAValue
    emit: Callable[[], SSAValue] | None = None


class Emission:
    """A module under construction.

    kinds: PyTorch's shapes and types of the current operator's results.
    number: number of the current operator.
    forward_number: number of the composite operator whose backward it is.
    saved: values that a composite's forward saves for its backward, by the forward operator's
        number.
    drawn: dropout masks by the same number.
    pivots_of_determinants: pivots that the backward pass of a determinant takes.
    """

    def __init__(self, builder: Builder, precision: str) -> None:
        self.builder = builder
        self.precision = precision
        self.saved: dict[int, Any] = {}
        self.drawn: dict[int, SSAValue] = {}
        self.pivots_of_determinants: set[SSAValue] = set()
        self.number = 0
        self.forward_number = 0
        self.kinds: tuple[TensorKind, ...] = ()
        self._streams = 0
        self._dependences: Dependences = {}

    def emit(self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain) -> SSAValue:
        """Emit an operator and return its first result."""
        return self.builder.emit(kind, *operands, **properties)

    def emit_all(
        self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain
    ) -> tuple[SSAValue, ...]:
        """Emit an operator and return all its results."""
        return self.builder.emit_all(kind, *operands, **properties)

    def full(self, value: float, dtype: str, sizes: tuple[int, ...] = ()) -> SSAValue:
        """Emit a tensor filled with a number."""
        return self.builder.full(float(value), tensor_type(sizes, dtype))

    def view(self, x: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
        """Emit a view of another shape."""
        return x if shape(x) == sizes else self.emit(ViewOp, x, shape=sizes)

    def expand(self, x: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
        """Emit an expansion to a shape."""
        return x if shape(x) == sizes else self.emit(ExpandOp, x, shape=sizes)

    def permute(self, x: SSAValue, dims: Sequence[int]) -> SSAValue:
        """Emit a permutation of the axes: axis `dims[d]` becomes axis d."""
        in_order = tuple(dims) == tuple(range(len(shape(x))))
        return x if in_order else self.emit(PermuteOp, x, dims=tuple(dims))

    def cast(self, x: SSAValue, to: str) -> SSAValue:
        """Emit a cast."""
        return x if dtype(x) == to else self.emit(ToCopyOp, x, dtype=to)

    def wrap(self, x: SSAValue, kind: torch.dtype) -> SSAValue:
        """Emit an int32 modulo the range of a small integer type, as PyTorch stores it."""
        low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
        count = self.full(high - low + 1, "int32")
        if not low:
            return self.emit(RemainderOp, x, count)
        from_zero = self.emit(RemainderOp, self.emit(SubOp, x, self.full(low, "int32")), count)
        return self.emit(AddOp, from_zero, self.full(low, "int32"))

    @property
    def dtype(self) -> str:
        """CIRH's name of the first result's element type."""
        return name_of(self.kinds[0].dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The first result's shape."""
        return self.kinds[0].shape

    def constant(self, values: Any) -> SSAValue:
        """Emit an array that is the same in each step."""
        values = np.asarray(values)
        if values.size and (values == values.flat[0]).all():
            return self.full(float(values.flat[0]), values.dtype.name, values.shape)
        declared = tensor_type(values.shape, values.dtype.name)
        return self.builder.leaf(ConstantOp, declared, values=ConstantOp.packed(values))

    def array(self, numbers: torch.Tensor) -> "SSAValue | Complex":
        """Emit a tensor that is the same in each step, of two parts if it is complex."""
        numbers = numbers.int() if numbers.dtype in SMALL else numbers
        if numbers.is_complex():
            parts = torch.view_as_real(numbers.resolve_conj()).unbind(-1)
            return Complex(*(self.constant(part.numpy()) for part in parts))
        return self.constant(numbers.numpy())

    def next_stream(self) -> int:
        """Return the random stream of the next operator that draws: 0, 1, 2, …"""
        self._streams += 1
        return self._streams - 1

    def dependence(self, value: SSAValue) -> Dependence:
        """Return how a value depends on the batch."""
        return dependence_in(self._dependences, value)


def packed(emitter: Emitter) -> Emitter:
    """Return an emitter that takes ATen's arguments and packs those that `emitter` has in structs.

    A parameter whose type is a NamedTuple stands for as many of ATen's arguments as it has fields;
    arguments omitted at the end have its defaults.
    """
    parameters = list(signature(emitter).parameters.values())[1:]
    kinds = [p.annotation if hasattr(p.annotation, "_fields") else None for p in parameters]

    def emit(e: Emission, *given: Any, **options: Any) -> Any:
        left = iter(given)
        arguments: list[Any] = []
        for kind in kinds:
            if kind is None:
                arguments += islice(left, 1)
            else:
                arguments.append(kind(*islice(left, len(kind._fields))))
        return emitter(e, *arguments, *left, **options)

    return emit


def shape(x: SSAValue) -> tuple[int, ...]:
    """Return a value's shape."""
    return shape_of(type_of(x))


def rank(x: SSAValue) -> int:
    """Return a value's number of axes."""
    return len(shape(x))


def dtype(x: SSAValue) -> str:
    """Return NumPy's name of a value's element type."""
    return dtype_of(type_of(x))


def floats(x: SSAValue) -> bool:
    """True if a value's elements are floats."""
    return is_float(type_of(x))


def axis(dim: int, x: SSAValue) -> int:
    """Return an axis as a number from 0."""
    return dim % max(rank(x), 1)


def axes(dims: Any, x: SSAValue) -> tuple[int, ...]:
    """Return axes as numbers from 0, in order; all of them if none is given."""
    if not rank(x) or dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(rank(x)))
    given = dims if isinstance(dims, list | tuple) else [dims]
    return tuple(sorted(axis(d, x) for d in given))


def at_least_1d(emitter: Emitter) -> Emitter:
    """Adapt an emitter along an axis to scalars, treated as vectors of one, as PyTorch does.

    All results get the shape of the first one.
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
    """Return CIRH's name of a torch dtype.

    Raises: Unsupported if it has none
    """
    if kind not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise Unsupported(f"dtype {kind} is not supported: cast to one of {known}")
    return DTYPES[kind]


def real_type(kind: torch.dtype) -> torch.dtype:
    """Return the type of a complex type's parts, and any other type."""
    return REAL_TYPES.get(kind, kind)


def unsupported(rule: str, got: object, remedy: str) -> Unsupported:
    """Return an emitter's error: rule, got, remedy."""
    return Unsupported(f"{rule}, got {got}: {remedy}")
