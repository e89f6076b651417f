"""The traced tensor that a model function works on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp, SqrtOp, SubOp, ToCopyOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.comparison import ComparisonOp, EqOp, GeOp, GtOp, LeOp, LtOp, NeOp
from csrun.cirh.ops.powers import PowOp
from csrun.cirh.ops.rounding import FloorDivideOp, RemainderOp
from csrun.cirh.types import dtype_of, is_float, shape_of, tensor_type, text_of, type_of
from csrun.nn.errors import TraceError, located, user_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from csrun.nn.shapes import Index
    from csrun.nn.tracer import Tracer

log = logging.getLogger("csrun")

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

    def __floordiv__(self, other: Tensor | float) -> Tensor:
        return self._binary(FloorDivideOp, self, other)

    def __rfloordiv__(self, other: float) -> Tensor:
        return self._binary(FloorDivideOp, other, self)

    def __mod__(self, other: Tensor | float) -> Tensor:
        """The remainder with the sign of `other`, as in Python."""
        return self._binary(RemainderOp, self, other)

    def __rmod__(self, other: float) -> Tensor:
        return self._binary(RemainderOp, other, self)

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

    def __pow__(self, exponent: Tensor | float) -> Tensor:
        """Products, quotients and roots where it is one; integers to a whole power are integers."""
        if isinstance(exponent, bool | Tensor) or exponent not in POWERS:
            return self._power(exponent)
        if exponent < 0:
            require_no_integers(self, exponent)
            return 1.0 / self**-exponent
        if exponent == 0.5:
            return self.tracer.emit(SqrtOp, self.as_floats())
        x = self.as_floats() if isinstance(exponent, float) else self
        power = x
        for _ in range(int(exponent) - 1):
            power = power * x
        return power

    def __rpow__(self, base: float) -> Tensor:
        return self._binary(PowOp, base, self)

    def _power(self, exponent: Tensor | float) -> Tensor:
        require_no_integers(self, exponent)
        return self._binary(PowOp, self, exponent)

    def __abs__(self) -> Tensor:
        """|x|, whose slope at 0 is 0, as PyTorch's is."""
        from csrun.nn.elementwise import abs as absolute

        return absolute(self)

    def __bool__(self) -> bool:
        raise TraceError(
            f"{user_line()}: a traced tensor has no value while the model is built; "
            "compute with csrun.nn instead of branching on it"
        )

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._binary(EqOp, self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._binary(NeOp, self, other)

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self._binary(LtOp, self, other)

    def __le__(self, other: Tensor | float) -> Tensor:
        return self._binary(LeOp, self, other)

    def __gt__(self, other: Tensor | float) -> Tensor:
        return self._binary(GtOp, self, other)

    def __ge__(self, other: Tensor | float) -> Tensor:
        return self._binary(GeOp, self, other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Tensor({text_of(type_of(self.value))}, {self.dtype})"

    def astype(self, dtype: str) -> Tensor:
        """The same numbers as another element type.

        Of floats integers have the whole part, and booleans whether they are not 0: such a result
        has no gradient.

        Raises: ShapeError for a type that there is not
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
        with located(name):
            lhs, rhs = promoted(name, lhs, rhs, to_floats=kind is DivOp)
            if lhs.dtype == "bool" and not issubclass(kind, ComparisonOp):
                raise TraceError(f"{user_line()}: {name}: there is no arithmetic of two booleans")
            _warn_of_pairs(name, lhs, rhs)
            return self.tracer.emit(kind, lhs, rhs)


def _warn_of_pairs(name: str, lhs: Tensor, rhs: Tensor) -> None:
    """Say that [B, 1] and [B] broadcast to [B, B]: each sample with each other one.

    Nobody who means that leaves out an axis of one of them.
    """
    if len(lhs.shape) == len(rhs.shape) or not lhs.shape or not rhs.shape:
        return
    axes = [x.tracer.dependence(x).axis for x in (lhs, rhs)]
    behind = {
        len(x.shape) - axis for x, axis in zip((lhs, rhs), axes, strict=True) if axis is not None
    }
    if len(behind) > 1:
        log.warning(
            "%s: %s: shapes %s and %s broadcast to each sample with each other one; give both "
            "the same number of axes, as x[:, 0] and y, or x and y[:, None]",
            user_line(),
            name,
            list(lhs.shape),
            list(rhs.shape),
        )


def promoted(
    name: str, *values: Any, tracer: Tracer | None = None, to_floats: bool = False
) -> tuple[Tensor, ...]:
    """What a function `name` was given, tensors and numbers, as tensors of one element type.

    tracer: of a model, where all may be numbers. to_floats: integers are floats then.

    Raises: TraceError for anything else
    """
    checked = tuple(_checked(name, value) for value in values)
    tracer = tracer or next((x.tracer for x in checked if isinstance(x, Tensor)), None)
    if tracer is None:
        raise TraceError(f"{user_line()}: {name}: expected a tensor of the model, got numbers only")
    dtype = _promoted(checked, tracer.precision)
    if to_floats and _category(dtype) < _category(tracer.precision):
        dtype = tracer.precision
    return tuple(_operand(value, dtype, tracer) for value in checked)


def _operand(value: Tensor | Number, dtype: str, tracer: Tracer) -> Tensor:
    if isinstance(value, Tensor):
        return value.astype(dtype)
    return Tensor(tracer, tracer.builder.full(value, tensor_type((), dtype)))


def require_no_integers(base: Tensor, exponent: Tensor | float) -> None:
    """Raises: TraceError for integers to a negative power, which is no integer"""
    if isinstance(exponent, int) and exponent < 0 and not is_float(type_of(base.value)):
        raise TraceError(
            f"{user_line()}: pow: integers to the negative power {exponent} are no integers: "
            f"x.astype('{base.tracer.precision}') makes floats of them"
        )


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
