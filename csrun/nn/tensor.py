"""The traced tensor that a model function works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops.activation import ReluOp
from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp, SqrtOp, SubOp, ToCopyOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.types import dtype_of, is_float, shape_of, tensor_type, text_of, type_of
from csrun.nn.errors import TraceError, located, user_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from csrun.nn.shapes import Index
    from csrun.nn.tracer import Tracer

Number = bool | int | float
POWERS = (-2, -1, -0.5, 0.5, 1, 2, 3)  # those that PyTorch, too, computes without a logarithm


class Tensor:
    """A value of the model that is being traced; it has a shape and a type, but no numbers yet.

    Where element types differ, arithmetic has the type that it has in PyTorch: integers and a
    number with a fraction give floats of the run's precision, and so does a division.
    """

    __array_ufunc__ = None  # an array on the left asks us, and does not go through its elements

    def __init__(self, tracer: Tracer, value: SSAValue) -> None:
        self.tracer = tracer
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes, the batch first."""
        return shape_of(type_of(self.value))

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return dtype_of(type_of(self.value))

    @property
    def name(self) -> str:
        """The value's name in the intermediate representation, '' when it has none."""
        return self.value.name_hint or ""

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._binary(AddOp, self, other)

    def __radd__(self, other: float) -> Tensor:
        return self._binary(AddOp, other, self)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._binary(SubOp, self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self._binary(SubOp, other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._binary(MulOp, self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self._binary(MulOp, other, self)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._binary(DivOp, self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self._binary(DivOp, other, self)

    def __neg__(self) -> Tensor:
        return self.tracer.emit(NegOp, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        from csrun.nn.functions import matmul  # which is written in terms of tensors

        return matmul(self, other)

    def __getitem__(self, key: Index | tuple[Index, ...]) -> Tensor:
        from csrun.nn.shapes import part

        return part(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        """What is at each place of the first axis."""
        return (self[place] for place in range(self.shape[0]))

    def __pow__(self, exponent: float) -> Tensor:
        """Powers that are products, quotients and roots."""
        if isinstance(exponent, bool) or exponent not in POWERS:
            known = ", ".join(map(str, POWERS))
            raise TraceError(f"{user_line()}: pow: the exponent must be {known}, got {exponent!r}")
        if exponent < 0:
            return 1.0 / self**-exponent
        if exponent == 0.5:
            return self.tracer.emit(SqrtOp, self.as_floats())
        power = self
        for _ in range(int(exponent) - 1):
            power = power * self
        return power

    def __abs__(self) -> Tensor:
        """|x|, whose slope at 0 is 0, as PyTorch's is."""
        x = require_floats("abs", self)
        return self.tracer.emit(ReluOp, x) + self.tracer.emit(ReluOp, -x)

    def __bool__(self) -> bool:
        raise TraceError(
            f"{user_line()}: a traced tensor has no value while the model is built; "
            "compute with csrun.nn instead of branching on it"
        )

    def _compared(self, other: object) -> NoReturn:
        """Refused; Python's own == would be False, and x * (x == 0) a 0."""
        raise TraceError(
            f"{user_line()}: traced tensors are not compared, as they have no value while the "
            "model is built; nn.relu(x) is max(x, 0), and nn.argmax finds the largest"
        )

    __lt__ = __gt__ = __le__ = __ge__ = _compared
    __eq__ = __ne__ = _compared
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Tensor({text_of(type_of(self.value))}, {self.dtype})"

    def astype(self, dtype: str) -> Tensor:
        """The same numbers as another element type: integers as floats, or as int64.

        Raises: ShapeError for a type that has no room for them
        """
        if dtype == self.dtype:
            return self
        with located("astype"):
            return self.tracer.emit(ToCopyOp, self, dtype=dtype)

    def as_floats(self) -> Tensor:
        """Itself, integers as floats of the run's precision."""
        return self if is_float(type_of(self.value)) else self.astype(self.tracer.precision)

    def _binary(self, kind: type[CirhOp], lhs: Any, rhs: Any) -> Tensor:
        name = kind.name.removeprefix("cirh.")
        lhs, rhs = _checked(name, lhs), _checked(name, rhs)
        dtype = _promoted((lhs, rhs), self.tracer.precision)
        if kind is DivOp and _category(dtype) < _category(self.tracer.precision):
            dtype = self.tracer.precision
        if dtype == "bool":
            raise TraceError(f"{user_line()}: {name}: there is no arithmetic of two booleans")
        with located(name):
            return self.tracer.emit(kind, self._operand(lhs, dtype), self._operand(rhs, dtype))

    def _operand(self, value: Tensor | Number, dtype: str) -> Tensor:
        if isinstance(value, Tensor):
            return value.astype(dtype)
        return Tensor(self.tracer, self.tracer.builder.full(value, tensor_type((), dtype)))


def require_tensor(name: str, x: Any) -> Tensor:
    """What a function `name` was given.

    Raises: TraceError for anything but a tensor of a model
    """
    if not isinstance(x, Tensor):
        what = f"an array of shape {list(x.shape)}" if isinstance(x, np.ndarray) else repr(x)
        raise TraceError(f"{user_line()}: {name}: expected a tensor of the model, got {what}")
    return x


def require_floats(name: str, x: Any) -> Tensor:
    """What a function `name` of floats was given.

    Raises: TraceError for anything but a tensor of floats
    """
    tensor = require_tensor(name, x)
    if not is_float(type_of(tensor.value)):
        raise TraceError(
            f"{user_line()}: {name}: expected floats, got {tensor.dtype}: "
            f"x.astype('{tensor.tracer.precision}') makes them"
        )
    return tensor


def _checked(name: str, value: Any) -> Tensor | Number:
    """An operand: a tensor, or a number as Python has it.

    Raises: TraceError for anything else
    """
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Tensor | bool | int | float):
        return value
    if isinstance(value, np.ndarray):
        raise TraceError(
            f"{user_line()}: {name}: expected a tensor of this model or a number, got an array of "
            f"shape {list(value.shape)}: constants come with the batch, from input_fn"
        )
    raise TraceError(
        f"{user_line()}: {name}: expected a tensor of this model or a number, got {value!r}"
    )


def _category(dtype: str) -> int:
    return "bif".index(np.dtype(dtype).kind)


def _promoted(operands: tuple[Tensor | Number, ...], precision: str) -> str:
    """The element type of arithmetic with these operands.

    Tensors with axes decide; a single number, and more so a constant, only if it is of another
    category: booleans, integers, floats.

    Source: PyTorch, torch.result_type
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    numbers = [x for x in operands if not isinstance(x, Tensor)]
    of_number = {bool: "bool", int: "int64", float: precision}
    groups = (
        [x.dtype for x in tensors if x.shape],
        [x.dtype for x in tensors if not x.shape],
        [of_number[type(x)] for x in numbers],
    )
    largest = [max(g, key=lambda d: (_category(d), np.dtype(d).itemsize)) for g in groups if g]
    return max(largest, key=_category)  # the first of equals
