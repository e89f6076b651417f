"""Attention."""

from collections.abc import Iterator
from math import sqrt

from csrun.cirh.ops.attention import AttentionOp
from csrun.cirh.ops.shape import ExpandOp
from csrun.cirh.types import text_of, type_of
from csrun.nn.errors import ShapeError, TraceError, located, user_line
from csrun.nn.initializers import Initializer, glorot_uniform
from csrun.nn.layers import Dense
from csrun.nn.shapes import reshape, transpose
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


class MultiHeadAttention:
    """Attention of each position to others: heads side by side, from one projection of x.

    Parameters are those of two `Dense` layers: `<name>/qkv` [D, 3 D], queries, keys and values of
    all heads, and `<name>/out` [D, D].

    Raises: TraceError for a number of heads below 1
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
    ) -> None:
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
        """Shapes: x [B, T, D], mask broadcast to [B, H, T, T] -> [B, T, D]

        Raises: ShapeError for another number of axes, or features that the heads do not divide
        """
        with x.tracer.layer("attention", self.name) as scope_name:
            if len(x.shape) != 3 or x.shape[2] % self.num_heads:
                raise ShapeError(
                    f"{user_line()}: layer {scope_name}: the input must be [batch, positions, "
                    f"features] with features that {self.num_heads} heads divide, "
                    f"got shape {text_of(type_of(x.value))}"
                )
            size = x.shape[2]
            joined = Dense(3 * size, None, self.use_bias, self._kernel_initializer, "qkv")(x)
            query, key, value = self._heads(joined)
            out = scaled_dot_product_attention(query, key, value, mask, self.is_causal)
            out = reshape(transpose(out, (0, 2, 1, 3)), x.shape)
            return Dense(size, None, self.use_bias, self._output_initializer, "out")(out)

    def _heads(self, joined: Tensor) -> Iterator[Tensor]:
        """Shapes: [B, T, 3 D] -> three [B, H, T, E]"""
        batch, length, size = joined.shape
        heads = (batch, length, 3, self.num_heads, size // 3 // self.num_heads)
        return iter(transpose(reshape(joined, heads), (2, 0, 3, 1, 4)))
