"""Tensors filled with one number."""

from typing import Any

from xdsl.ir import SSAValue

from csrun.pytorch.operators.base import Emission, Emitter, dtype, name_of, shape


def ones_like(e: Emission, x: SSAValue, **options: Any) -> SSAValue:
    return full_like(e, x, 1, **options)


def zeros_like(e: Emission, x: SSAValue, **options: Any) -> SSAValue:
    return full_like(e, x, 0, **options)


def full_like(e: Emission, x: SSAValue, value: float, **options: Any) -> SSAValue:
    return e.full(value, _type(x, options), shape(x))


def new_full(e: Emission, x: SSAValue, sizes: Any, value: float, **options: Any) -> SSAValue:
    return e.full(value, _type(x, options), tuple(sizes))


def new_zeros(e: Emission, x: SSAValue, sizes: Any, **options: Any) -> SSAValue:
    return new_full(e, x, sizes, 0, **options)


def new_ones(e: Emission, x: SSAValue, sizes: Any, **options: Any) -> SSAValue:
    return new_full(e, x, sizes, 1, **options)


def new_empty(e: Emission, x: SSAValue, sizes: Any, *strides: Any, **options: Any) -> SSAValue:
    """Zeros in place of uninitialized memory."""
    return new_full(e, x, sizes, 0, **options)


def _type(x: SSAValue, options: dict[str, Any]) -> str:
    kind = options.get("dtype")
    return dtype(x) if kind is None else name_of(kind)


EMITTERS: dict[str, Emitter] = {
    "aten.ones_like.default": ones_like,
    "aten.zeros_like.default": zeros_like,
    "aten.full_like.default": full_like,
    "aten.fill.Scalar": full_like,
    "aten.new_empty.default": new_empty,
    "aten.new_empty_strided.default": new_empty,
    "aten.empty_like.default": zeros_like,
    "aten.new_full.default": new_full,
    "aten.new_zeros.default": new_zeros,
    "aten.new_ones.default": new_ones,
    "aten.scalar_tensor.default": lambda e, value, **options: e.full(
        value, name_of(options["dtype"])
    ),
}
