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
POWERS = (-2, -1, -0.5, 0.5, 1, 2, 3)  # exponents that PyTorch computes without a logarithm, too


class Tensor:
    """Traced tensor of a model function: a shape and a dtype, no values.

    Arithmetic promotes dtypes as PyTorch does: integers with a float number give floats of the
    run's precision, and so does division.
    """

    __array_ufunc__ = None  # array + tensor calls our __radd__ instead of looping over the elements

    def __init__(self, tracer: Tracer, value: SSAValue) -> None:
        self.tracer = tracer
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, batch first."""
        return shape_of(type_of(self.value))

    @property
    def dtype(self) -> str:
        """Element type by its NumPy name."""
        return dtype_of(type_of(self.value))

    @property
    def name(self) -> str:
        """Name of the value in the IR, or ''."""
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
        """Remainder with the sign of `other`, as in Python."""
        return self._binary(RemainderOp, self, other)

    def __rmod__(self, other: float) -> Tensor:
        return self._binary(RemainderOp, other, self)

    def __neg__(self) -> Tensor:
        return self.tracer.emit(NegOp, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        from csrun.nn.functions import matmul  # imports this module

        return matmul(self, other)

    def __getitem__(self, key: Index | tuple[Index, ...]) -> Tensor:
        from csrun.nn.shapes import index

        return index(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over the first axis."""
        return (self[index] for index in range(self.shape[0]))

    def __pow__(self, exponent: Tensor | float) -> Tensor:
        """Power; by products, quotients and roots where the exponent is in POWERS."""
        if isinstance(exponent, bool | Tensor) or exponent not in POWERS:
            return self._power(exponent)
        if exponent < 0:
            require_float_power(self, exponent)
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
        require_float_power(self, exponent)
        return self._binary(PowOp, self, exponent)

    def __abs__(self) -> Tensor:
        """|x|, with gradient 0 at 0 as in PyTorch."""
        from csrun.nn.elementwise import abs as absolute

        return absolute(self)

    def __bool__(self) -> bool:
        raise TraceError(
            f"{user_line()}: a traced tensor has no value to branch on; use nn.where instead of if"
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
        """Cast to another dtype.

        Floats are truncated to integers, and become True as booleans unless 0; such a result has no
        gradient.

        Raises: ShapeError for an unknown dtype
        """
        if dtype == self.dtype:
            return self
        with located("astype"):
            return self.tracer.emit(ToCopyOp, self, dtype=dtype)

    def as_floats(self) -> Tensor:
        """Cast integers to floats of the run's precision; floats are returned unchanged."""
        return self if is_float(type_of(self.value)) else self.astype(self.tracer.precision)

    def _binary(self, kind: type[CirhOp], lhs: Any, rhs: Any) -> Tensor:
        name = kind.name.removeprefix("cirh.")
        with located(name):
            lhs, rhs = promote(name, lhs, rhs, to_floats=kind is DivOp)
            if lhs.dtype == "bool" and not issubclass(kind, ComparisonOp):
                raise TraceError(
                    f"{user_line()}: {name}: expected numbers, got two bool tensors: use "
                    "x.astype('int32')"
                )
            _warn_of_outer_broadcast(name, lhs, rhs)
            return self.tracer.emit(kind, lhs, rhs)


def _warn_of_outer_broadcast(name: str, lhs: Tensor, rhs: Tensor) -> None:
    """Warn where [B, 1] and [B] broadcast to [B, B], every sample with every other.

    An intended outer product would have the same number of axes on both sides.
    """
    if len(lhs.shape) == len(rhs.shape) or not lhs.shape or not rhs.shape:
        return
    axes = [x.tracer.dependence(x).axis for x in (lhs, rhs)]
    from_end = {
        len(x.shape) - axis for x, axis in zip((lhs, rhs), axes, strict=True) if axis is not None
    }
    if len(from_end) > 1:
        log.warning(
            "%s: %s: shapes %s and %s broadcast every sample against every other; use equal "
            "ranks, as x[:, 0] and y, or x and y[:, None]",
            user_line(),
            name,
            list(lhs.shape),
            list(rhs.shape),
        )


def promote(
    name: str, *values: Any, tracer: Tracer | None = None, to_floats: bool = False
) -> tuple[Tensor, ...]:
    """Convert the operands of function `name`, tensors or numbers, to tensors of one dtype.

    tracer: the model, needed if all are numbers. to_floats: promote integers to floats.

    Raises: TraceError for an operand of another type
    """
    operands = tuple(_require_operand(name, value) for value in values)
    tracer = tracer or next((x.tracer for x in operands if isinstance(x, Tensor)), None)
    if tracer is None:
        raise TraceError(f"{user_line()}: {name}: expected a tensor of the model, got numbers only")
    dtype = _result_type(operands, tracer.precision)
    if to_floats and _category(dtype) < _category(tracer.precision):
        dtype = tracer.precision
    return tuple(_operand(value, dtype, tracer) for value in operands)


def _operand(value: Tensor | Number, dtype: str, tracer: Tracer) -> Tensor:
    if isinstance(value, Tensor):
        return value.astype(dtype)
    return Tensor(tracer, tracer.builder.full(value, tensor_type((), dtype)))


def require_float_power(base: Tensor, exponent: Tensor | float) -> None:
    """Refuse integers raised to a negative power, which need not be an integer.

    Raises: TraceError for them
    """
    if isinstance(exponent, int) and exponent < 0 and not is_float(type_of(base.value)):
        raise TraceError(
            f"{user_line()}: pow: integers cannot be raised to the negative power {exponent}: "
            f"use x.astype('{base.tracer.precision}')"
        )


def require_tensor(name: str, x: Any) -> Tensor:
    """Return the argument of function `name`.

    Raises: TraceError unless it is a traced tensor
    """
    if not isinstance(x, Tensor):
        what = f"an array of shape {list(x.shape)}" if isinstance(x, np.ndarray) else repr(x)
        raise TraceError(f"{user_line()}: {name}: expected a tensor of the model, got {what}")
    return x


def require_floats(name: str, x: Any) -> Tensor:
    """Return the argument of function `name`.

    Raises: TraceError unless it is a traced tensor of floats
    """
    tensor = require_tensor(name, x)
    if not is_float(type_of(tensor.value)):
        raise TraceError(
            f"{user_line()}: {name}: expected floats, got {tensor.dtype}: "
            f"use x.astype('{tensor.tracer.precision}')"
        )
    return tensor


def _require_operand(name: str, value: Any) -> Tensor | Number:
    """Return an operand as a tensor or a Python number.

    Raises: TraceError for any other type
    """
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Tensor | bool | int | float):
        return value
    if isinstance(value, np.ndarray):
        raise TraceError(
            f"{user_line()}: {name}: expected a tensor of this model or a number, got an array of "
            f"shape {list(value.shape)}: return constants with the batch, from input_fn"
        )
    raise TraceError(
        f"{user_line()}: {name}: expected a tensor of this model or a number, got {value!r}"
    )


def _category(dtype: str) -> int:
    return "bif".index(np.dtype(dtype).kind)


def _result_type(operands: tuple[Tensor | Number, ...], precision: str) -> str:
    """Result dtype of arithmetic on these operands.

    Tensors with axes decide; a scalar tensor, then a Python number, only if its category (bool,
    integer, float) is higher.

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
    return max(largest, key=_category)  # the first one, if equal
