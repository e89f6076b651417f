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
    """x, its values turned in pairs by angles that grow with their position along `axis`.

    Of the last axis the first `rotary_dim` values turn, all unless it is given: pair i of position
    t by t base^(-2 i / rotary_dim). Pairs are neighbours, as in GPT-J, or, not `interleaved`, the
    first half with the second, as in LLaMA.

    Shapes: [..., T, ..., E] -> the same
    Raises: ShapeError for an odd rotary_dim or one larger than E, and an axis that is not before it
    Source: Su et al. 2021, RoFormer, section 3.2
    """
    with located("rotary_embedding"):
        return x.tracer.emit(
            RotaryEmbeddingOp,
            x,
            dim=axis + len(x.shape) if axis < 0 else axis,
            # of a number, which is refused, the sum is 0
            rotary_dim=sum(x.shape[-1:]) if rotary_dim is None else rotary_dim,
            base=float(base),
            is_interleaved=bool(interleaved),
            is_inverse=False,
        )
