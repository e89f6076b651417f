"""Reference implementations of what transformers are made of: norms, softmax, tables, attention."""

from typing import Any

import numpy as np

from csrun.cirh.ops import attention, embedding, normalization
from csrun.cirh.ops.base import Properties, integer, number
from csrun.cirh.ops.rotary import RotaryEmbeddingOp
from csrun.cirh.reference.arithmetic import Array, References


def softmax(properties: Properties, x: Any) -> Any:
    """exp(x) over its sum along an axis."""
    dim = integer(properties, "dim")
    exponential = np.exp(x - x.max(axis=dim, keepdims=True))
    return exponential / exponential.sum(axis=dim, keepdims=True)


def softmax_backward(properties: Properties, grad: Any, out: Any) -> Any:
    """out (grad - sum(grad out))."""
    return out * (grad - (grad * out).sum(axis=integer(properties, "dim"), keepdims=True))


def layer_norm(properties: Properties, x: Any, weight: Any, bias: Any) -> tuple[Array, ...]:
    """The result, and mean and 1 / standard deviation of each run of values."""
    axes = _last(weight.ndim)
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    rstd = 1 / np.sqrt(variance + x.dtype.type(number(properties, "eps")))
    return (x - mean) * rstd * weight + bias, mean, rstd


def layer_norm_backward(
    properties: Properties, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any
) -> tuple[Array, ...]:
    """Of x, weight and bias."""
    axes, normal = _last(weight.ndim), (x - mean) * rstd
    scaled = grad * weight
    own = scaled - scaled.mean(axis=axes, keepdims=True)
    own = own - normal * (scaled * normal).mean(axis=axes, keepdims=True)
    outer = tuple(range(x.ndim - weight.ndim))
    return rstd * own, (grad * normal).sum(axis=outer), grad.sum(axis=outer)


def rms_norm(properties: Properties, x: Any, weight: Any) -> tuple[Array, ...]:
    """The result, and 1 / root mean square of each run of values."""
    square = (x * x).mean(axis=_last(weight.ndim), keepdims=True)
    rrms = 1 / np.sqrt(square + x.dtype.type(number(properties, "eps")))
    return x * rrms * weight, rrms


def rms_norm_backward(
    properties: Properties, grad: Any, x: Any, rrms: Any, weight: Any
) -> tuple[Array, ...]:
    """Of x and weight."""
    normal, scaled = x * rrms, grad * weight
    own = scaled - normal * (scaled * normal).mean(axis=_last(weight.ndim), keepdims=True)
    return rrms * own, (grad * normal).sum(axis=tuple(range(x.ndim - weight.ndim)))


def _last(count: int) -> tuple[int, ...]:
    return tuple(range(-count, 0))


def lookup(properties: Properties, weight: Any, indices: Any) -> Any:
    """Rows of the weight."""
    return weight[indices]


def lookup_backward(properties: Properties, grad: Any, indices: Any) -> Any:
    """Gradients added up by row of the weight."""
    out = np.zeros((integer(properties, "num_weights"), grad.shape[-1]), grad.dtype)
    np.add.at(out, indices, grad)
    padding = integer(properties, "padding_idx")
    if padding != embedding.NO_PADDING:
        out[padding] = 0
    return out


def attend(properties: Properties, q: Any, k: Any, v: Any, *mask: Any) -> tuple[Array, ...]:
    """The result and the logarithm of each row's sum."""
    scores = _scores(properties, q, k, mask)
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponential = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = exponential.sum(axis=-1, keepdims=True)
    attended = exponential / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        return attended @ v, (largest + np.log(total))[..., 0]


def attend_backward(
    properties: Properties, grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, *mask: Any
) -> tuple[Array, ...]:
    """Of query, key and value; the scores are computed again."""
    scores = _scores(properties, q, k, mask)
    attended = np.exp(scores - np.where(np.isneginf(sums), 0, sums)[..., None])
    own = attended * (grad @ _t(v) - (grad * out).sum(axis=-1, keepdims=True))
    own = own * q.dtype.type(number(properties, "scale"))
    return own @ k, _t(own) @ q, _t(attended) @ grad


def _scores(properties: Properties, q: Any, k: Any, mask: tuple[Any, ...]) -> Any:
    scores = q.dtype.type(number(properties, "scale")) * (q @ _t(k))
    for each in mask:
        scores = np.where(each, scores, -np.inf) if each.dtype == bool else scores + each
    if integer(properties, "is_causal"):
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    return scores.astype(q.dtype)


def _t(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def rotary_embedding(properties: Properties, x: Any) -> Any:
    """Pairs times cosine and sine of their angles."""
    size, dim = integer(properties, "rotary_dim"), integer(properties, "dim")
    halves = slice(0, size // 2), slice(size // 2, size)
    pairs = slice(0, size, 2), slice(1, size, 2)
    first, second = pairs if integer(properties, "is_interleaved") else halves
    angles = np.arange(x.shape[dim])[:, None] * number(properties, "base") ** (
        -np.arange(0, size, 2) / size
    )
    angles = angles.reshape(-1, *(1,) * (x.ndim - 2 - dim), size // 2)
    cosine, sine = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    sine = -sine if integer(properties, "is_inverse") else sine
    out = x.copy()
    out[..., first] = x[..., first] * cosine - x[..., second] * sine
    out[..., second] = x[..., second] * cosine + x[..., first] * sine
    return out


REFERENCES: References = {
    normalization.SoftmaxOp: softmax,
    normalization.SoftmaxBackwardOp: softmax_backward,
    normalization.NativeLayerNormOp: layer_norm,
    normalization.NativeLayerNormBackwardOp: layer_norm_backward,
    normalization.FusedRmsNormOp: rms_norm,
    normalization.FusedRmsNormBackwardOp: rms_norm_backward,
    embedding.EmbeddingOp: lookup,
    embedding.EmbeddingDenseBackwardOp: lookup_backward,
    attention.AttentionOp: attend,
    attention.AttentionBackwardOp: attend_backward,
    RotaryEmbeddingOp: rotary_embedding,
}
