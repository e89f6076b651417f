"""Scaled dot-product attention, forward and backward: one operator each.

The result and each row's logsumexp are saved, from which the backward pass recomputes the scores.
"""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import BoolAttr, FloatAttr, TensorType
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    ResultLayout,
    Types,
    integer,
    number,
    require_rank,
    require_same,
    require_same_dtype,
)
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


@irdl_op_definition
class AttentionOp(CirhOp):
    """softmax(scale query key^T + mask) value; a row whose keys are all masked is 0.

    A boolean mask is true at the keys to attend to; another mask is added. With `is_causal`, query
    i attends to keys 0..i. With `dropout`, a rate, the last mask selects the kept weights, which
    are scaled by 1 / (1 - dropout).

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1; the row sums: Dao et al.
    2022, FlashAttention, section 3.1
    """

    name = "cirh.scaled_dot_product_attention"
    BY_SAMPLE: ClassVar = True
    RESULT_LAYOUT: ClassVar = ResultLayout.ROWS
    query = operand_def(TensorType)
    key = operand_def(TensorType)
    value = operand_def(TensorType)
    mask = var_operand_def(TensorType)
    is_causal = prop_def(BoolAttr)
    scale = prop_def(FloatAttr)
    dropout = opt_prop_def(FloatAttr)
    out = result_def(TensorType)
    logsumexp = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """Query [B, H, T, E], key [B, H, S, E], value [B, H, S, F] -> [B, H, T, F], [B, H, T].

        A mask broadcasts to [B, H, T, S].
        """
        query, key, value, *mask = types
        require_attention(query, key, value, mask, properties)
        batch, heads, length, _ = shape_of(query)
        out = (batch, heads, length, shape_of(value)[3])
        return tensor_type(out, dtype_of(query)), tensor_type(out[:3], dtype_of(query))

    def gradients(self, back: Backward) -> Gradients:
        """Gradients of query, key and value, from the saved result and row sums; a mask has none.

        Raises: VerifyException if a mask depends on parameters
        """
        query, key, value, *mask = back.operands
        if any(back.wanted[3:]):
            raise VerifyException("a mask must not depend on parameters")
        kind, results = AttentionBackwardOp, self.results
        grads = back.emit_all(kind, back.grad, query, key, value, *results, *mask, **back.options())
        return [*grads, *(None for _ in mask)]

    def compute(self, q: Any, k: Any, v: Any, *mask: Any) -> tuple[Any, ...]:
        """The result and each row's logsumexp."""
        mask, kept = _kept(self.properties, mask)
        scores = _scores(self.properties, q, k, mask)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        exponential = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = exponential.sum(axis=-1, keepdims=True)
        attended = exponential / np.where(total == 0, 1, total) * kept
        with np.errstate(divide="ignore"):
            return attended @ v, (largest + np.log(total))[..., 0]


@irdl_op_definition
class AttentionBackwardOp(CirhOp):
    """The gradients of query, key and value."""

    name = "cirh.scaled_dot_product_attention_backward"
    BY_SAMPLE: ClassVar = True
    READS_IN_PLACE: ClassVar = ("out",)
    RESULT_LAYOUT: ClassVar = ResultLayout.ROWS
    grad = operand_def(TensorType)
    query = operand_def(TensorType)
    key = operand_def(TensorType)
    value = operand_def(TensorType)
    out = operand_def(TensorType)
    logsumexp = operand_def(TensorType)
    mask = var_operand_def(TensorType)
    is_causal = prop_def(BoolAttr)
    scale = prop_def(FloatAttr)
    dropout = opt_prop_def(FloatAttr)
    query_gradient = result_def(TensorType)
    key_gradient = result_def(TensorType)
    value_gradient = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """The types of query, key and value."""
        grad, query, key, value, out, logsumexp, *mask = types
        require_attention(query, key, value, mask, properties)
        require_same(grad, out)
        if shape_of(logsumexp) != shape_of(query)[:3]:
            raise VerifyException(
                f"logsumexp must have one value per row of {text_of(query)}, got "
                f"{text_of(logsumexp)}"
            )
        return query, key, value

    def compute(
        self, grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, *mask: Any
    ) -> tuple[Any, ...]:
        """Gradients of query, key and value; the scores are recomputed."""
        mask, kept = _kept(self.properties, mask)
        scores = _scores(self.properties, q, k, mask)
        attended = np.exp(scores - np.where(np.isneginf(sums), 0, sums)[..., None])
        own = attended * (grad @ _t(v) * kept - (grad * out).sum(axis=-1, keepdims=True))
        own = own * q.dtype.type(number(self.properties, "scale"))
        return own @ k, _t(own) @ q, _t(attended * kept) @ grad


def require_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Types, properties: Properties
) -> None:
    """Raises: VerifyException unless the shapes of an attention fit."""
    for kind, what in ((query, "the query"), (key, "the key"), (value, "the value")):
        require_rank(kind, 4, what)
    require_same_dtype((query, key, value))
    (*outer, length, size), keys, values = map(shape_of, (query, key, value))
    if list(keys[:2]) != outer or list(values[:2]) != outer or keys[3] != size:
        raise VerifyException(
            "query, key and value must agree in batch, heads and head size, got "
            f"{text_of(query)}, {text_of(key)} and {text_of(value)}"
        )
    if values[2] != keys[2]:
        raise VerifyException(
            f"key and value must have equal lengths, got {text_of(key)} and {text_of(value)}"
        )
    if "dropout" in properties:
        rate, kept = number(properties, "dropout"), tensor_type((*outer, length, keys[2]), "bool")
        if not 0 <= rate < 1 or not mask or mask[-1] != kept:
            raise VerifyException(
                f"dropout must be in [0, 1) with a mask of type {kept}, got {rate}"
            )
        mask = mask[:-1]
    if len(mask) > 1:
        raise VerifyException(f"at most one mask is allowed, got {len(mask)}")
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


def _kept(properties: Properties, mask: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Return the masks of the scores, and the factor of the weights."""
    if "dropout" not in properties:
        return mask, 1
    return mask[:-1], mask[-1] / (1 - number(properties, "dropout"))


def _scores(properties: Properties, q: Any, k: Any, mask: tuple[Any, ...]) -> Any:
    scores = q.dtype.type(number(properties, "scale")) * (q @ _t(k))
    for each in mask:
        scores = np.where(each, scores, -np.inf) if each.dtype == bool else scores + each
    if integer(properties, "is_causal"):
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    return scores.astype(q.dtype)


def _t(x: Any) -> Any:
    return x.swapaxes(-1, -2)


OPS = (AttentionOp, AttentionBackwardOp)
