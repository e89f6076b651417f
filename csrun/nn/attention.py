"""Scaled dot-product and multi-head attention."""

from collections.abc import Iterator
from math import sqrt

from csrun.cirh.batch_axes import SampleAxis
from csrun.cirh.ops.attention import AttentionOp
from csrun.cirh.ops.base import Plain
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.ops.shape import ExpandOp
from csrun.cirh.types import is_float, tensor_type, text_of, type_of
from csrun.nn.errors import ShapeError, TraceError, located, user_line
from csrun.nn.initializers import Initializer, glorot_uniform
from csrun.nn.layers import Dense, require_rate
from csrun.nn.shapes import reshape, transpose, view
from csrun.nn.tensor import Tensor, require_tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale query key^T + mask) value, with `scale` 1 / sqrt(E) by default.

    A boolean mask is True at the keys to attend to; a mask of any other type is added to the
    scores. With `is_causal`, query i attends to keys 0..i. A query without any key gives 0. In
    training, attention weights are dropped with probability `dropout` and the rest scaled up, as in
    `Dropout`.

    Shapes: query [B, H, T, E], key [B, H, S, E], value [B, H, S, F], mask broadcast to [B, H, T, S]
    -> [B, H, T, F]
    Raises: ShapeError when shapes or types do not fit; TraceError for a dropout outside [0, 1)
    Source: Vaswani et al. 2017, section 3.2.1
    """
    tracer = query.tracer
    with located("scaled_dot_product_attention"):
        options: dict[str, Plain] = {
            "is_causal": is_causal,
            "scale": 1 / sqrt(query.shape[-1]) if scale is None else float(scale),
        }
        scores, masks = (*query.shape[:3], key.shape[-2]), []
        if mask is not None:
            masks.append(
                mask if mask.shape == scores else tracer.emit(ExpandOp, mask, shape=scores)
            )
        if require_rate("scaled_dot_product_attention: dropout", dropout):
            masks.append(_dropout_mask(query, scores, dropout))
            options["dropout"] = float(dropout)
        return tracer.emit(AttentionOp, query, key, value, *masks, **options)


def _dropout_mask(query: Tensor, scores: tuple[int, ...], rate: float) -> Tensor:
    """Dropout mask of the attention weights, with a random stream per query and head.

    Raises: TraceError unless the first axis is the batch
    """
    tracer, dependence = query.tracer, query.tracer.dependence(query)
    if len(scores) != 4 or dependence.sample_axis != SampleAxis(0):
        raise TraceError(
            f"{user_line()}: scaled_dot_product_attention: with dropout the query must be [batch, "
            f"heads, positions, features], batch first, got shape {list(query.shape)}"
        )
    stream, runs = tracer.next_stream(), scores[1] * scores[2]
    options = {"rate": float(rate), "stream": stream, "rows": 1, "runs": runs}
    return Tensor(
        tracer, tracer.builder.leaf(DropoutMaskOp, tensor_type(scores, "bool"), **options)
    )


class MultiHeadAttention:
    """Multi-head self-attention, with one projection to the queries, keys and values of all heads.

    Its parameters are those of two `Dense` layers: `<name>/qkv` [D, 3 D] and `<name>/out` [D, D].

    Raises: TraceError for num_heads below 1, or a dropout outside [0, 1)
    Source: Vaswani et al. 2017, section 3.2.2
    """

    def __init__(
        self,
        num_heads: int,
        is_causal: bool = False,
        use_bias: bool = True,
        kernel_initializer: Initializer = glorot_uniform,
        output_initializer: Initializer = glorot_uniform,
        name: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        self.dropout = require_rate("MultiHeadAttention: dropout", dropout)
        if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
            raise TraceError(
                f"{user_line()}: MultiHeadAttention: num_heads must be a positive integer, "
                f"got {num_heads!r}"
            )
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.use_bias = use_bias
        self.name = name
        self._kernel_initializer = kernel_initializer
        self._output_initializer = output_initializer

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from each position of x to the positions where the mask is True or not 0.

        Shapes: x [B, T, D], mask [B, T] of keys, [T, T], [B, T, T] or [B, 1 or H, 1 or T, T]
        -> [B, T, D]
        Raises: ShapeError for an input that is not [B, T, D], a D that is not a multiple of the
            heads, or a mask of another shape
        """
        with x.tracer.layer("attention", self.name) as scope_name:
            if len(x.shape) != 3 or x.shape[2] % self.num_heads:
                raise ShapeError(
                    f"{user_line()}: layer {scope_name}: the input must be [batch, positions, "
                    f"features], features a multiple of num_heads {self.num_heads}, "
                    f"got shape {text_of(type_of(x.value))}"
                )
            size = x.shape[2]
            joined = Dense(3 * size, None, self.use_bias, self._kernel_initializer, "qkv")(x)
            query, key, value = self._split_heads(joined)
            if mask is not None:
                mask = self._with_heads_axis(mask, x)
            out = scaled_dot_product_attention(
                query, key, value, mask, self.is_causal, dropout=self.dropout
            )
            out = reshape(transpose(out, (0, 2, 1, 3)), x.shape)
            return Dense(size, None, self.use_bias, self._output_initializer, "out")(out)

    def _with_heads_axis(self, mask: Tensor, x: Tensor) -> Tensor:
        """Return the mask with a heads axis, integers converted to booleans.

        Shapes: -> [B or 1, H or 1, T or 1, T]
        """
        batch, length, _ = x.shape
        if not is_float(type_of(require_tensor("MultiHeadAttention: mask", mask).value)):
            mask = mask.astype("bool")
        shape = mask.shape
        # Where B equals T, only a dependence on the batch distinguishes [B, T] from [T, T].
        if shape == (batch, length) and (batch != length or mask.tracer.dependence(mask).axis == 0):
            return view(mask, (batch, 1, 1, length))
        if shape == (length, length):
            return view(mask, (1, 1, length, length))
        if shape == (batch, length, length):
            return view(mask, (batch, 1, length, length))
        sizes = ((1, batch), (1, self.num_heads), (1, length), (length,))
        if len(shape) != 4 or any(n not in fit for n, fit in zip(shape, sizes, strict=True)):
            raise ShapeError(
                f"{user_line()}: MultiHeadAttention: a mask must be [batch, positions], "
                "[positions, positions], [batch, positions, positions] or [batch, 1 or heads, "
                f"1 or positions, positions], got {list(shape)} for an input of {list(x.shape)}"
            )
        return mask

    def _split_heads(self, joined: Tensor) -> Iterator[Tensor]:
        """Shapes: [B, T, 3 D] -> three [B, H, T, E]"""
        batch, length, size = joined.shape
        heads = (batch, length, 3, self.num_heads, size // 3 // self.num_heads)
        return iter(transpose(reshape(joined, heads), (2, 0, 3, 1, 4)))
