"""Rotary position embedding: pairs of values rotated by an angle proportional to the position."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import BoolAttr, FloatAttr, IntegerAttr
from xdsl.irdl import irdl_op_definition, prop_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import Properties, Reads, Types, UnaryOp, integer, number
from csrun.cirh.types import Tensor, is_integer, shape_of, text_of


@irdl_op_definition
class RotaryEmbeddingOp(UnaryOp):
    """Pair i of position t along `dim`, as a complex number, times exp(j t base^(-2 i / R)).

    The first R = `rotary_dim` values of the last axis are rotated. Pairs are adjacent values if
    `is_interleaved`, else the first half with the second. `is_inverse` rotates back.

    Source: Su et al. 2021, RoFormer, section 3.2
    """

    name = "cirh.rotary_embedding"
    READS: ClassVar = Reads.LAST_AXIS
    dim = prop_def(IntegerAttr)
    rotary_dim = prop_def(IntegerAttr)
    base = prop_def(FloatAttr)
    is_interleaved = prop_def(BoolAttr)
    is_inverse = prop_def(BoolAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[..., T, ..., E] -> the same."""
        (x,) = types
        sizes, dim = shape_of(x), integer(properties, "dim")
        if is_integer(x):
            raise VerifyException(f"x must be floating point, got {x}")
        if len(sizes) < 2 or not 0 <= dim < len(sizes) - 1:
            raise VerifyException(
                f"dim must name an axis before the last one of {text_of(x)}, got {dim}"
            )
        rotary = integer(properties, "rotary_dim")
        if rotary % 2 or not 2 <= rotary <= sizes[-1]:
            raise VerifyException(
                f"rotary_dim must be even and in 2..{sizes[-1]}, the size of the last axis, "
                f"got {rotary}"
            )
        if not number(properties, "base") > 0:
            raise VerifyException(f"base must be > 0, got {number(properties, 'base')}")
        return x

    def gradients(self, back: Backward) -> Gradients:
        """g rotated back."""
        other_way = not self.is_inverse.value.data
        options = back.options("is_inverse")
        return [back.emit(RotaryEmbeddingOp, back.grad, is_inverse=other_way, **options)]

    def compute(self, x: Any) -> Any:
        """Pairs times cosine and sine of their angles."""
        size, dim = integer(self.properties, "rotary_dim"), integer(self.properties, "dim")
        halves = slice(0, size // 2), slice(size // 2, size)
        pairs = slice(0, size, 2), slice(1, size, 2)
        first, second = pairs if integer(self.properties, "is_interleaved") else halves
        angles = np.arange(x.shape[dim])[:, None] * number(self.properties, "base") ** (
            -np.arange(0, size, 2) / size
        )
        angles = angles.reshape(-1, *(1,) * (x.ndim - 2 - dim), size // 2)
        cosine, sine = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
        sine = -sine if integer(self.properties, "is_inverse") else sine
        out = x.copy()
        out[..., first] = x[..., first] * cosine - x[..., second] * sine
        out[..., second] = x[..., second] * cosine + x[..., first] * sine
        return out


OPS = (RotaryEmbeddingOp,)
