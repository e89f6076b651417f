"""Attention."""

from math import sqrt

from csrun.cirh.ops.attention import AttentionOp
from csrun.cirh.ops.shape import ExpandOp
from csrun.nn.errors import located
from csrun.nn.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale query key^T + mask) value, `scale` being 1 / sqrt(E) unless it is given.

    A mask of booleans is true where there is something to attend to; another one is added. With
    `is_causal`, query i attends to keys 0..i. A query that attends to nothing gets 0.

    Shapes: query [B, H, T, E], key [B, H, S, E], value [B, H, S, F], mask broadcast to [B, H, T, S]
    -> [B, H, T, F]
    Raises: ShapeError when shapes or types do not fit
    Source: Vaswani et al. 2017, section 3.2.1
    """
    tracer = query.tracer
    with located("scaled_dot_product_attention"):
        options = {
            "is_causal": is_causal,
            "scale": 1 / sqrt(query.shape[-1]) if scale is None else float(scale),
        }
        if mask is None:
            return tracer.emit(AttentionOp, query, key, value, **options)
        scores = (*query.shape[:3], key.shape[-2])
        mask = mask if mask.shape == scores else tracer.emit(ExpandOp, mask, shape=scores)
        return tracer.emit(AttentionOp, query, key, value, mask, **options)
