"""Fake quantization: values rounded to a grid, and whether they are within its range.

The gradient passes where they are.
"""

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, SubOp
from csrun.cirh.ops.comparison import ClampOp, EqOp, NeOp, WhereOp
from csrun.cirh.ops.rounding import RoundOp
from csrun.pytorch.operators.base import Emission, Emitter, axis, dtype, rank, shape

Grid = tuple[SSAValue, SSAValue, SSAValue]  # scale, its inverse, number of the zero


def _quantized(
    e: Emission, x: SSAValue, grid: Grid, least: int, most: int
) -> tuple[SSAValue, SSAValue]:
    """Emit the nearest values of a grid; NaN counts as its least one."""
    scale, inverse, zero = grid
    found = e.emit(AddOp, e.emit(RoundOp, e.emit(MulOp, x, inverse)), zero)
    inside = e.emit(ClampOp, found, min_val=float(least), max_val=float(most))
    is_none = e.emit(NeOp, found, found)
    number = e.emit(WhereOp, is_none, e.full(least, dtype(x)), inside)
    out = e.emit(MulOp, e.emit(SubOp, number, zero), scale)
    return out, e.emit(EqOp, found, inside)


def by_numbers(
    e: Emission, x: SSAValue, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[SSAValue, SSAValue]:
    """Emit a grid given as numbers; PyTorch computes with its scale in float32."""
    one = np.float32(scale)
    numbers = float(one), float(np.float32(1) / one), float(zero_point)
    scale_of, inverse, zero = (e.full(number, dtype(x)) for number in numbers)
    return _quantized(e, x, (scale_of, inverse, zero), quant_min, quant_max)


def _grid(e: Emission, x: SSAValue, scale: SSAValue, zero_point: SSAValue, dim: int) -> Grid:
    """Return a grid given as values for each index of an axis, or one for all."""
    along = tuple(n if d == dim else 1 for d, n in enumerate(shape(x)))
    sizes = along if shape(scale) not in ((), (1,)) else ()
    scale, zero = (e.view(e.cast(one, dtype(x)), sizes) for one in (scale, zero_point))
    return scale, e.emit(DivOp, e.full(1, dtype(x)), scale), zero


def by_values(
    e: Emission,
    x: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    enabled: SSAValue,
    quant_min: int,
    quant_max: int,
) -> tuple[SSAValue, SSAValue]:
    out, is_inside = _quantized(e, x, _grid(e, x, scale, zero_point, -1), quant_min, quant_max)
    is_on = e.view(e.emit(NeOp, enabled, e.full(0, dtype(enabled))), ())
    true = e.full(1, "bool", shape(x))
    return e.emit(WhereOp, is_on, out, x), e.emit(WhereOp, is_on, is_inside, true)


def by_channel(
    e: Emission,
    x: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    dim: int,
    quant_min: int,
    quant_max: int,
) -> tuple[SSAValue, SSAValue]:
    grid = _grid(e, x, scale, zero_point, axis(dim, x) if rank(x) else 0)
    return _quantized(e, x, grid, quant_min, quant_max)


EMITTERS: dict[str, Emitter] = {
    "aten.fake_quantize_per_tensor_affine_cachemask.default": by_numbers,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": by_values,
    "aten.fake_quantize_per_channel_affine_cachemask.default": by_channel,
}
