"""Metrics computed on the host from NumPy arrays, as totals and counts that add up over batches."""

import numpy as np
import numpy.typing as npt

from csrun.base.callers import user_line
from csrun.base.errors import UsageError
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.nn.signature import checked
from csrun.runtime.step.results import ExponentialMean, Mean


@checked
def accuracy(
    labels: npt.ArrayLike, predictions: npt.ArrayLike, ignore_index: int = IGNORE_INDEX
) -> Mean:
    """Fraction of labels, other than `ignore_index`, that equal the prediction.

    Shapes: labels and predictions, both class indices, of equal shape, e.g. [B]
    Raises: UsageError if the shapes differ, or labels are floats and predictions are not
    """
    wanted, found = np.asarray(labels), np.asarray(predictions)
    if wanted.dtype.kind == "f" and found.dtype.kind in "iu":
        raise UsageError(
            f"{user_line()}: accuracy: labels come first, as accuracy(labels, predictions): "
            f"got labels of {wanted.dtype} and predictions of {found.dtype}"
        )
    if wanted.ndim + 1 == found.ndim and found.shape[:-1] == wanted.shape:
        raise UsageError(
            f"{user_line()}: accuracy: predictions must be class indices, got shape "
            f"{list(found.shape)} for labels {list(wanted.shape)}: pass nn.argmax(logits) to "
            "host_call"
        )
    if wanted.shape != found.shape:
        raise UsageError(
            f"{user_line()}: accuracy: labels and predictions must have equal shapes, "
            f"got {list(wanted.shape)} and {list(found.shape)}"
        )
    valid = wanted != ignore_index
    return Mean(float(np.sum(valid & (wanted == found))), int(np.sum(valid)))


@checked
def perplexity(
    loss: npt.ArrayLike, labels: npt.ArrayLike, ignore_index: int = IGNORE_INDEX
) -> ExponentialMean:
    """Exponential of the mean loss over all labels other than `ignore_index`.

    loss: the mean over these labels of the batch, as `nn.softmax_cross_entropy` returns it.

    Shapes: loss [], labels of any shape
    """
    count = int(np.sum(np.asarray(labels) != ignore_index))
    return ExponentialMean(float(np.asarray(loss)) * count, count)
