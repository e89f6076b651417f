"""Reference implementations: activations and losses, forward and backward, and random masks.

Masks are Philox on Python's integers, one counter at a time.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import StringAttr

from csrun.cirh.ops import activation, loss, random
from csrun.cirh.ops.base import Properties, integer, number
from csrun.cirh.reference.arithmetic import Array, References, plain


def threshold_backward(properties: Properties, grad: Any, saved: Any) -> Any:
    """The gradient where `saved` is above the threshold."""
    return np.where(saved > number(properties, "threshold"), grad, 0).astype(grad.dtype)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def silu_backward(grad: Any, x: Any) -> Any:
    """grad times the slope of x sigmoid(x)."""
    return grad * sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def gelu(properties: Properties, x: Any) -> Any:
    """x times the normal distribution function, or its approximation."""
    if _is_exact(properties):
        return x * 0.5 * (1 + _erf(x / math.sqrt(2)))
    return x * 0.5 * (1 + np.tanh(_INNER * (x + _CUBE * x**3)))


def gelu_backward(properties: Properties, grad: Any, x: Any) -> Any:
    """grad times the slope of gelu."""
    if _is_exact(properties):
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return grad * (0.5 * (1 + _erf(x / math.sqrt(2))) + x * density)
    tanh = np.tanh(_INNER * (x + _CUBE * x**3))
    inner = _INNER * (1 + 3 * _CUBE * x * x)
    return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner)


_INNER, _CUBE = math.sqrt(2 / math.pi), 0.044715  # NumPy's own would make float32 float64


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def _is_exact(properties: Properties) -> bool:
    return properties["approximate"] == StringAttr("none")


def elu(properties: Properties, x: Any) -> Any:
    """scale (x or alpha (exp(x) - 1))."""
    alpha, scale = number(properties, "alpha"), number(properties, "scale")
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(x))


def elu_backward(properties: Properties, grad: Any, out: Any) -> Any:
    """grad times the slope, from the output."""
    alpha, scale = number(properties, "alpha"), number(properties, "scale")
    return grad * np.where(out > 0, scale, out + alpha * scale)


def leaky_relu(properties: Properties, x: Any) -> Any:
    """x, or slope x below 0."""
    return np.where(x > 0, x, number(properties, "negative_slope") * x)


def leaky_relu_backward(properties: Properties, grad: Any, saved: Any) -> Any:
    """grad, or slope grad below 0."""
    return np.where(saved > 0, grad, number(properties, "negative_slope") * grad)


def hardtanh(properties: Properties, x: Any) -> Any:
    """x within its bounds."""
    return np.clip(x, number(properties, "min_val"), number(properties, "max_val"))


def hardtanh_backward(properties: Properties, grad: Any, saved: Any) -> Any:
    """grad strictly between the bounds."""
    low, high = number(properties, "min_val"), number(properties, "max_val")
    return np.where((saved > low) & (saved < high), grad, 0)


def log_softmax(properties: Properties, x: Any) -> Any:
    """x - log(sum(exp(x))), shifted by the maximum against overflow."""
    dim = integer(properties, "dim")
    shifted = x - x.max(axis=dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True))


def log_softmax_backward(properties: Properties, grad: Any, out: Any) -> Any:
    """grad - softmax * sum(grad)."""
    return grad - np.exp(out) * grad.sum(axis=integer(properties, "dim"), keepdims=True)


def nll_loss(properties: Properties, x: Any, labels: Any) -> Any:
    """Shapes: x [B, C], labels [B] -> scalar sum"""
    (rows,) = np.nonzero(labels != integer(properties, "ignore_index"))
    return np.asarray(-x[rows, labels[rows]].sum())


def nll_loss_backward(properties: Properties, grad: Any, x: Any, labels: Any) -> Any:
    """Shapes: grad scalar, x [B, C], labels [B] -> [B, C]"""
    (rows,) = np.nonzero(labels != integer(properties, "ignore_index"))
    out = np.zeros_like(x)
    out[rows, labels[rows]] = -grad
    return out


Words = tuple[int, int, int, int]
WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Draw:
    """What a mask depends on besides its operator: the run's seed, the step, the first sample."""

    seed: int = 0
    step: int = 0
    first_sample: int = 0


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10.

    Source: Salmon et al. 2011, section 4
    """
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = second >> 32 ^ b ^ k, second & WORD, first >> 32 ^ d ^ m, first & WORD
        k, m = k + 0x9E3779B9 & WORD, m + 0xBB67AE85 & WORD
    return a, b, c, d


def dropout_mask(properties: Properties, shape: tuple[int, ...], draw: Draw) -> Array:
    """Eight columns a counter: its words in the order 0, 1, 2, 3, low half first, in two halves."""
    per_sample = integer(properties, "rows") if "rows" in properties else 1
    rows = shape[0] // per_sample if per_sample else 1
    first = draw.first_sample if per_sample else 0
    columns = math.prod(shape) // rows
    blocks, stream = -(-columns // 8), integer(properties, "stream")
    key = draw.seed & WORD, draw.seed >> 32
    levels = np.empty((rows, 2, blocks, 4), np.int64)
    for row in range(rows):
        for block in range(blocks):
            words = philox((block, stream, first + row, draw.step), key)
            for place, word in enumerate(words):
                half, pair = divmod(place, 2)
                levels[row, half, block, 2 * pair : 2 * pair + 2] = word & 0xFFFF, word >> 16
    kept = levels.reshape(rows, -1)[:, :columns] >= round(number(properties, "rate") * 65536)
    return kept.reshape(shape)


def masked_scale(properties: Properties, x: Any, mask: Any) -> Any:
    """x where the mask is true, scaled."""
    return np.where(mask, x * x.dtype.type(number(properties, "scale")), x.dtype.type(0))


REFERENCES: References = {
    activation.ReluOp: plain(lambda x: np.maximum(x, x.dtype.type(0))),
    activation.ThresholdBackwardOp: threshold_backward,
    activation.SigmoidOp: plain(sigmoid),
    activation.SigmoidBackwardOp: plain(lambda grad, y: grad * y * (1 - y)),
    activation.TanhOp: plain(np.tanh),
    activation.TanhBackwardOp: plain(lambda grad, y: grad * (1 - y * y)),
    activation.SiluOp: plain(lambda x: x * sigmoid(x)),
    activation.SiluBackwardOp: plain(silu_backward),
    activation.SoftplusOp: plain(lambda x: np.logaddexp(x, x.dtype.type(0))),
    activation.SoftplusBackwardOp: plain(lambda grad, x: grad * sigmoid(x)),
    activation.GeluOp: gelu,
    activation.GeluBackwardOp: gelu_backward,
    activation.EluOp: elu,
    activation.EluBackwardOp: elu_backward,
    activation.LeakyReluOp: leaky_relu,
    activation.LeakyReluBackwardOp: leaky_relu_backward,
    activation.HardtanhOp: hardtanh,
    activation.HardtanhBackwardOp: hardtanh_backward,
    loss.LogSoftmaxOp: log_softmax,
    loss.LogSoftmaxBackwardOp: log_softmax_backward,
    loss.NllLossForwardOp: nll_loss,
    loss.NllLossBackwardOp: nll_loss_backward,
    random.MaskedScaleOp: masked_scale,
}
