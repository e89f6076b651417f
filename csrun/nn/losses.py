"""Losses, each a scalar: the mean over the global batch.

Predictions, or logits, come first and labels second, as in PyTorch.
"""

from math import prod

from csrun.cirh.ops import arithmetic, loss, padding
from csrun.cirh.ops.base import Plain
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.nn.activations import softplus
from csrun.nn.elementwise import abs as absolute
from csrun.nn.elementwise import minimum
from csrun.nn.errors import ShapeError, TraceError, located, user_line
from csrun.nn.functions import fill_padding, mean
from csrun.nn.shapes import view
from csrun.nn.tensor import Tensor, require_floats, require_tensor

__all__ = [
    "binary_cross_entropy",
    "huber",
    "mean_absolute_error",
    "mean_squared_error",
    "softmax_cross_entropy",
]


def mean_squared_error(predictions: Tensor, labels: Tensor) -> Tensor:
    """Mean of (predictions - labels)^2.

    Shapes: predictions and labels of equal shape, e.g. [B] -> scalar
    Raises: ShapeError if the shapes differ
    """
    x, y = _require_pair("mean_squared_error", predictions, labels)
    difference = x - y
    return mean(difference * difference)


def mean_absolute_error(predictions: Tensor, labels: Tensor) -> Tensor:
    """Mean of |predictions - labels|.

    Shapes: predictions and labels of equal shape, e.g. [B] -> scalar
    Raises: ShapeError if the shapes differ
    """
    x, y = _require_pair("mean_absolute_error", predictions, labels)
    return mean(absolute(x - y))


def huber(predictions: Tensor, labels: Tensor, delta: float = 1.0) -> Tensor:
    """Mean of error^2 / 2 for errors up to `delta`, and of delta * (error - delta / 2) beyond.

    Shapes: predictions and labels of equal shape, e.g. [B] -> scalar
    Raises: ShapeError if the shapes differ; TraceError for a delta that is not positive
    Source: Huber 1964, in the form of torch.nn.HuberLoss
    """
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not delta > 0:
        raise TraceError(f"{user_line()}: huber: delta must be positive, got {delta!r}")
    x, y = _require_pair("huber", predictions, labels)
    error = absolute(x - y)
    inner = minimum(error, float(delta))
    return mean(inner * (error - 0.5 * inner))


def binary_cross_entropy(logits: Tensor, labels: Tensor, pos_weight: float = 1.0) -> Tensor:
    """Mean binary cross entropy of logits, before the sigmoid, and labels 0 or 1.

    Labels between 0 and 1 are probabilities. `pos_weight` scales the loss of label 1, for
    unbalanced classes.

    Shapes: logits and labels of equal shape, e.g. [B] -> scalar
    Raises: ShapeError if the shapes differ; TraceError for logits that are not floats, or a
        negative pos_weight
    Source: torch.nn.BCEWithLogitsLoss
    """
    if isinstance(pos_weight, bool) or not isinstance(pos_weight, int | float) or pos_weight < 0:
        raise TraceError(
            f"{user_line()}: binary_cross_entropy: pos_weight must be a number >= 0, "
            f"got {pos_weight!r}"
        )
    require_floats("binary_cross_entropy", logits)
    x, y = _require_pair("binary_cross_entropy", logits, labels)
    positive = softplus(-x)  # -log sigmoid(x), without overflow
    if pos_weight != 1:
        positive = (1.0 + (float(pos_weight) - 1.0) * y) * positive
    return mean((1.0 - y) * x + positive)


def _require_pair(name: str, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as floats.

    Raises: ShapeError if the shapes differ: [B, 1] and [B] would broadcast to [B, B]
    """
    x, y = require_tensor(name, predictions), require_tensor(name, labels)
    if x.shape != y.shape:
        raise ShapeError(
            f"{user_line()}: {name}: predictions and labels must have equal shapes, "
            f"got {list(x.shape)} and {list(y.shape)}{_remedy(x.shape, y.shape)}"
        )
    return x.as_floats(), y.as_floats()


def _remedy(predictions: tuple[int, ...], labels: tuple[int, ...]) -> str:
    for name, longer, shorter in (
        ("predictions", predictions, labels),
        ("labels", labels, predictions),
    ):
        if longer == (*shorter, 1):
            return f": {name}[..., 0] drops the last axis"
    return ""


def softmax_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Mean of -log softmax(logits)[label] over the global batch, without labels `ignore_index`.

    With `label_smoothing` s, the target is 1 - s for the label plus s / C for each class.

    Shapes: logits [B, ..., C], labels [B, ...] integers in 0..C-1, or ignore_index -> scalar
    Raises: ShapeError for mismatched shapes or types
    """
    tracer = require_floats("softmax_cross_entropy", logits).tracer
    require_tensor("softmax_cross_entropy", labels)
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TraceError(
            f"{user_line()}: softmax_cross_entropy: ignore_index must be an integer, "
            f"got {ignore_index!r}"
        )
    if labels.dtype == "bool":
        labels = labels.astype("int32")
    with located("softmax_cross_entropy"):
        if len(logits.shape) > 2 and labels.shape == logits.shape[:-1]:
            logits = view(logits, (prod(labels.shape), logits.shape[-1]))
            labels = view(labels, (prod(labels.shape),))
        valid = fill_padding(labels, ignore_index)
        count = tracer.emit(
            padding.LabelCountOp, valid, ignore_index=ignore_index, dtype=logits.dtype
        )
        log_probabilities = tracer.emit(loss.LogSoftmaxOp, logits, dim=len(logits.shape) - 1)
        options: dict[str, Plain] = {"ignore_index": ignore_index}
        if label_smoothing:
            options["label_smoothing"] = float(label_smoothing)
        total = tracer.emit(loss.NllLossForwardOp, log_probabilities, valid, **options)
        return tracer.emit(arithmetic.DivOp, total, count)
