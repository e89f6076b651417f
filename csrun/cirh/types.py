"""Tensor types of CIRH and their NumPy names."""

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
from xdsl.dialects.builtin import (
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
    TensorType,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

Tensor = TensorType[Attribute]

ELEMENT_TYPES: dict[str, Attribute] = {
    "float32": Float32Type(),
    "float64": Float64Type(),
    "int32": i32,
    "int64": i64,
    "bool": i1,
    "uint16": IntegerType(16, Signedness.UNSIGNED),  # words of 16-bit formats
}
_NAMES = {element: name for name, element in ELEMENT_TYPES.items()}


def tensor_type(shape: Sequence[int], dtype: str) -> Tensor:
    """Return the type of a tensor of this shape; equal ones are one object.

    Raises: VerifyException for an element type that CIRH does not have
    """
    return _tensor_type(tuple(shape), dtype)


@cache
def _tensor_type(shape: tuple[int, ...], dtype: str) -> Tensor:
    if dtype not in ELEMENT_TYPES:
        raise VerifyException(
            f"element type must be one of {', '.join(ELEMENT_TYPES)}, got {dtype}"
        )
    return TensorType(ELEMENT_TYPES[dtype], shape)


def type_of(value: SSAValue) -> Tensor:
    """Return the tensor type of a value."""
    kind = value.type
    if not isinstance(kind, TensorType):
        raise VerifyException(f"expected a tensor, got {kind}")
    return kind


def shape_of(kind: Tensor) -> tuple[int, ...]:
    return kind.get_shape()


def dtype_of(kind: Tensor) -> str:
    """Return NumPy's name of the element type."""
    return _NAMES[kind.element_type]


def size_of(kind: Tensor) -> int:
    return prod(shape_of(kind))


def bytes_of(kind: Tensor) -> int:
    """Return the size in dense memory."""
    return size_of(kind) * np.dtype(dtype_of(kind)).itemsize


def is_float(kind: Tensor) -> bool:
    """True for tensors that gradients can flow through."""
    return isinstance(kind.element_type, Float32Type | Float64Type)


def is_integer(kind: Tensor) -> bool:
    """True for labels, indices and masks."""
    return isinstance(kind.element_type, IntegerType)


def text_of(kind: Tensor) -> str:
    """Format a shape for an error message: [128, 50]."""
    return f"[{', '.join(map(str, shape_of(kind)))}]"
