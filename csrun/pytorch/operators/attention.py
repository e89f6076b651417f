"""Scaled dot-product attention as one operator."""

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.batch_axes import SampleAxis
from csrun.cirh.ops.attention import AttentionBackwardOp, AttentionOp
from csrun.cirh.ops.base import Plain
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.types import tensor_type
from csrun.pytorch.operators.base import Emission, Emitter, shape


def attention(
    e: Emission,
    *tensors: SSAValue,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> SSAValue:
    """Attention of a query, a key and a value, under a mask if there is a fourth tensor.

    Shapes: [..., T, E], whose outer axes are samples and heads -> [..., T, E]
    """
    query, key, value, *given = tensors
    sample_axes = [e.dependence(x).sample_axis for x in (query, key, value)]
    axes = _Axes.of(
        shape(query)[:-2], next((a for a in sample_axes if a.axis is not None), SampleAxis(None))
    )
    heads = [axes.split(e, x) for x in (query, key, value)]
    scores = (*shape(heads[0])[:3], shape(heads[1])[2])
    options: dict[str, Plain] = {
        "is_causal": is_causal,
        "scale": 1 / sqrt(shape(query)[-1]) if scale is None else float(scale),
    }
    masks = [_expand_mask(e, mask, axes, scores) for mask in given]
    if dropout_p:
        masks.append(_dropout_mask(e, scores, dropout_p))
        options["dropout"] = dropout_p
        e.drawn[e.number] = axes.back(e, masks[-1])
    out, sums = e.emit_all(AttentionOp, *heads, *masks, **options)
    e.saved[e.number] = axes, heads, out, sums, masks, options
    return axes.back(e, out)


def attention_backward(
    e: Emission, grad: SSAValue, *given: SSAValue, needs: tuple[bool, ...], **unused: Any
) -> tuple[SSAValue, ...]:
    """Gradients of those of query, key and value that need one."""
    axes, heads, out, sums, masks, options = e.saved[e.forward_number]
    found = e.emit_all(
        AttentionBackwardOp, axes.split(e, grad), *heads, out, sums, *masks, **options
    )
    each = [axes.back(e, v) for v in found]
    return tuple(v for v, need in zip(each, needs, strict=False) if need)


@dataclass(frozen=True)
class _Axes:
    """The axes before the last two, and the sample axis, split out of the one that contains it."""

    sizes: tuple[int, ...]
    split_sizes: tuple[int, ...]
    samples: int

    @classmethod
    def of(cls, sizes: tuple[int, ...], place: SampleAxis) -> "_Axes":
        """place: of the samples; the first axis where they are on none of these."""
        if place.axis is None or place.axis >= len(sizes):
            split, first = sizes, 0
        else:
            axis, rows = place.axis, sizes[place.axis] // place.outer
            own = (place.outer, rows // place.rows, place.rows)
            split, first = (*sizes[:axis], *own, *sizes[axis + 1 :]), axis + 1
        return cls(sizes, split, first)

    def split(self, e: Emission, x: SSAValue) -> SSAValue:
        """Shapes: [..., T, E] -> [samples, heads, T, E]"""
        last = shape(x)[-2:]
        x = x if self._is_first else e.view(x, (*self.split_sizes, *last))
        order = (self.samples, *self._others, len(self.split_sizes), len(self.split_sizes) + 1)
        x = x if self._is_first else e.permute(x, order)
        return e.view(x, (self._count, prod(self.sizes) // max(self._count, 1), *last))

    def back(self, e: Emission, x: SSAValue) -> SSAValue:
        """Shapes: [samples, heads, T, E] -> [..., T, E]"""
        last, rank = shape(x)[-2:], len(self.split_sizes)
        if not self._is_first:
            order = (self.samples, *self._others)
            x = e.view(x, (*(self.split_sizes[d] for d in order), *last))
            axes = tuple(order.index(d) for d in range(rank))
            x = e.permute(x, (*axes, rank, rank + 1))
        return e.view(x, (*self.sizes, *last))

    @property
    def _count(self) -> int:
        return self.split_sizes[self.samples] if self.split_sizes else 1

    @property
    def _is_first(self) -> bool:
        return prod(self.split_sizes[: self.samples]) == 1

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.split_sizes)) if d != self.samples)


def _expand_mask(e: Emission, mask: SSAValue, axes: _Axes, scores: tuple[int, ...]) -> SSAValue:
    """Expand a mask to the shape of the scores."""
    own = shape(mask)
    if (*axes.sizes, *scores[2:]) == scores:
        return e.expand(mask, scores)
    if prod(own[:-2]) == 1:
        return e.expand(e.view(mask, own[-2:]), scores)
    return axes.split(e, e.expand(mask, (*axes.sizes, *scores[2:])))


def _dropout_mask(e: Emission, scores: tuple[int, ...], rate: float) -> SSAValue:
    """Emit the dropout mask of the attention weights: a run per query of each head."""
    options = {"rows": 1, "runs": scores[1] * scores[2], "stream": e.next_stream()}
    return e.builder.leaf(DropoutMaskOp, tensor_type(scores, "bool"), rate=rate, **options)


EMITTERS: dict[str, Emitter] = {
    "csrun::scaled_dot_product_attention": attention,
    "csrun::scaled_dot_product_attention_backward": attention_backward,
}
