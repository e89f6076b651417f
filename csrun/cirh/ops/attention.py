"""Scaled dot-product attention, forward and backward: one operator each.

What it saves is its result and the logarithm of each row's sum, from which the scores are computed
again on the way back.
"""

from xdsl.dialects.builtin import BoolAttr, FloatAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import (
    ASSEMBLY,
    CirhOp,
    Properties,
    Types,
    require_rank,
    require_same,
    require_same_dtype,
)
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


@irdl_op_definition
class AttentionOp(CirhOp):
    """softmax(scale query key^T + mask) value; without values to attend to a row is 0.

    A mask of booleans is true where there is something to attend to, another one is added. With
    `is_causal`, query i attends to keys 0..i.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1; the row sums: Dao et al.
    2022, FlashAttention, section 3.1
    """

    name = "cirh.scaled_dot_product_attention"
    query = operand_def(TensorType)
    key = operand_def(TensorType)
    value = operand_def(TensorType)
    mask = var_operand_def(TensorType)
    is_causal = prop_def(BoolAttr)
    scale = prop_def(FloatAttr)
    out = result_def(TensorType)
    logsumexp = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """Query [B, H, T, E], key [B, H, S, E], value [B, H, S, F] -> [B, H, T, F], [B, H, T].

        A mask broadcasts to [B, H, T, S].
        """
        query, key, value, *mask = types
        require_attention(query, key, value, mask)
        batch, heads, length, _ = shape_of(query)
        out = (batch, heads, length, shape_of(value)[3])
        return tensor_type(out, dtype_of(query)), tensor_type(out[:3], dtype_of(query))


@irdl_op_definition
class AttentionBackwardOp(CirhOp):
    """The gradients of query, key and value."""

    name = "cirh.scaled_dot_product_attention_backward"
    grad = operand_def(TensorType)
    query = operand_def(TensorType)
    key = operand_def(TensorType)
    value = operand_def(TensorType)
    out = operand_def(TensorType)
    logsumexp = operand_def(TensorType)
    mask = var_operand_def(TensorType)
    is_causal = prop_def(BoolAttr)
    scale = prop_def(FloatAttr)
    query_gradient = result_def(TensorType)
    key_gradient = result_def(TensorType)
    value_gradient = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """The types of query, key and value."""
        grad, query, key, value, out, logsumexp, *mask = types
        require_attention(query, key, value, mask)
        require_same(grad, out)
        if shape_of(logsumexp) != shape_of(query)[:3]:
            raise VerifyException(
                f"logsumexp must have a number for each row of {text_of(query)}, got"
                f" {text_of(logsumexp)}"
            )
        return query, key, value


def require_attention(query: Tensor, key: Tensor, value: Tensor, mask: Types) -> None:
    """Raises: VerifyException unless the shapes of an attention fit."""
    for kind, what in ((query, "the query"), (key, "the key"), (value, "the value")):
        require_rank(kind, 4, what)
    require_same_dtype((query, key, value))
    (*outer, length, size), keys, values = map(shape_of, (query, key, value))
    if list(keys[:2]) != outer or list(values[:2]) != outer or keys[3] != size:
        raise VerifyException(f"the key must be of {text_of(query)}'s kind, got {text_of(key)}")
    if values[2] != keys[2]:
        raise VerifyException(
            f"there must be a value for each key of {text_of(key)}, got {text_of(value)}"
        )
    if len(mask) > 1:
        raise VerifyException(f"one mask may be given, got {len(mask)}")
    for kind in mask:
        require_mask(kind, (*outer, length, keys[2]), dtype_of(query))


def require_mask(mask: Tensor, scores: tuple[int, ...], dtype: str) -> None:
    """Raises: VerifyException unless the mask, of booleans or numbers, broadcasts to the scores."""
    own = shape_of(mask)
    fits = len(own) <= len(scores) and all(
        a in (1, b) for a, b in zip(own[::-1], scores[::-1], strict=False)
    )
    if not fits:
        raise VerifyException(f"the mask must broadcast to {list(scores)}, got {text_of(mask)}")
    if dtype_of(mask) not in ("bool", dtype):
        raise VerifyException(f"the mask must be bool or {dtype}, got {dtype_of(mask)}")


OPS = (AttentionOp, AttentionBackwardOp)
