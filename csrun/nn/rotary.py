"""Rotary position embedding."""

from csrun.cirh.ops.rotary import RotaryEmbeddingOp
from csrun.nn.errors import located
from csrun.nn.tensor import Tensor


def rotary_embedding(
    x: Tensor,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    interleaved: bool = True,
    axis: int = -2,
) -> Tensor:
    """Rotary position embedding: rotate pairs of values by angles proportional to their position.

    The first `rotary_dim` values of the last axis are rotated, all by default: pair i at position t
    along `axis` by t * base^(-2 i / rotary_dim). If `interleaved`, pairs are adjacent values, as in
    GPT-J; else value i pairs with value i + rotary_dim / 2, as in LLaMA.

    Shapes: [..., T, ..., E] -> the same
    Raises: ShapeError for a rotary_dim that is odd or exceeds E, or an axis that is the last one
    Source: Su et al. 2021, RoFormer, section 3.2
    """
    with located("rotary_embedding"):
        return x.tracer.emit(
            RotaryEmbeddingOp,
            x,
            dim=axis + len(x.shape) if axis < 0 else axis,
            # a scalar sums to 0 and is refused
            rotary_dim=sum(x.shape[-1:]) if rotary_dim is None else rotary_dim,
            base=float(base),
            is_interleaved=bool(interleaved),
            is_inverse=False,
        )
