"""Attention, taken whole."""

from math import prod, sqrt
from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops.attention import AttentionBackwardOp, AttentionOp
from csrun.cirh.ops.base import Plain
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.types import tensor_type
from csrun.pytorch.operators.base import Emission, Emitter, shape, unsupported


def attention(
    e: Emission,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    mask: SSAValue | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> SSAValue:
    """Of [batch, heads, positions, features]; axes before the last two are these, or one more."""
    heads = [_heads(e, x) for x in (query, key, value)]
    scores = (*shape(heads[0])[:3], shape(heads[1])[2])
    options: dict[str, Plain] = {
        "is_causal": is_causal,
        "scale": 1 / sqrt(shape(query)[-1]) if scale is None else float(scale),
    }
    masks = [] if mask is None else [e.expand(_mask(e, mask, query), scores)]
    if dropout_p:
        masks.append(_kept(e, heads[0], scores, dropout_p))
        options["dropout"] = dropout_p
        e.drawn[e.place] = masks[-1]
    out, sums = e.emit_all(AttentionOp, *heads, *masks, **options)
    e.saved[e.place] = heads, out, sums, masks, options
    return e.view(out, (*shape(query)[:-1], shape(value)[-1]))


def attention_backward(
    e: Emission, grad: SSAValue, *given: SSAValue, needs: tuple[bool, ...], **unused: Any
) -> tuple[SSAValue, ...]:
    """Of those of query, key and value that are trained."""
    heads, out, sums, masks, options = e.saved[e.forward]
    found = e.emit_all(
        AttentionBackwardOp, e.view(grad, shape(out)), *heads, out, sums, *masks, **options
    )
    each = [e.view(v, shape(x)) for v, x in zip(found, given, strict=False)]
    return tuple(v for v, need in zip(each, needs, strict=False) if need)


def _heads(e: Emission, x: SSAValue) -> SSAValue:
    """Shapes: [..., T, E] -> [B, H, T, E]"""
    *outer, length, size = shape(x)
    if len(outer) == 2:
        return x
    batch = prod(outer[:-1]) if outer else 1
    return e.view(x, (batch, outer[-1] if outer else 1, length, size))


def _mask(e: Emission, mask: SSAValue, query: SSAValue) -> SSAValue:
    """A mask of four axes, or fewer where it is the same for all that are missing."""
    own, outer = shape(mask), shape(query)[:-2]
    if len(own) <= 2 or len(outer) == 2:
        return mask
    if len(outer) == 1 and len(own) == 3:
        return e.view(mask, (1, *own))
    raise unsupported("a mask must be of [batch, heads, queries, keys]", list(own))


def _kept(e: Emission, query: SSAValue, scores: tuple[int, ...], rate: float) -> SSAValue:
    """The mask of the weights, a run for each query of each head."""
    depends = e.dependence(query)
    if (depends.axis, depends.rows) != (0, 1):
        raise unsupported(
            "with dropout the query must be [batch, heads, positions, features]",
            f"{list(shape(query))}, whose first axis is not that of the samples",
        )
    options = {"rows": 1, "runs": scores[1] * scores[2], "stream": e.next_stream()}
    return e.builder.leaf(DropoutMaskOp, tensor_type(scores, "bool"), rate=rate, **options)


EMITTERS: dict[str, Emitter] = {
    "csrun::scaled_dot_product_attention": attention,
    "csrun::scaled_dot_product_attention_backward": attention_backward,
}
