"""FusedBatchNorm, by the statistics of a batch or by given ones."""

from typing import Any

import numpy as np

from csrun import nn
from csrun.cirh.ops.batch_norm import NativeBatchNormOp
from csrun.cirh.ops.normalization import NativeLayerNormOp
from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value
from csrun.tensorflow.operators.images import as_given, channels_first

_BATCH_FIRST = "batch normalization needs the batch as first axis of its images: reshape them"


def batch_norm(e: GraphEmission, op: Any, x: Value, *others: Value) -> tuple[Value, ...]:
    """Normalized images, and the mean and unbiased variance of each channel.

    Shapes: x [N, H, W, C]; scale, offset, mean, variance [C] -> x's, [C], [C]
    Source: tf.raw_ops.FusedBatchNormV3
    """
    images = channels_first(e, op, x)
    if op.get_attr("is_training") and e.tracer.dependence(images).axis == 1:
        return _normalized_rows(e, op, images, others[:2])
    scale, offset, mean, variance = map(e.tensor, others)
    epsilon = op.get_attr("epsilon")
    if not op.get_attr("is_training"):
        factor = scale / nn.sqrt(variance + epsilon)
        columns = [nn.reshape(each, (-1, 1, 1)) for each in (factor, offset - mean * factor)]
        return as_given(op, images * columns[0] + columns[1]), mean, variance
    return _trained(e, op, images, (scale, offset, mean, variance), epsilon)


def _trained(
    e: GraphEmission, op: Any, images: Tensor, others: tuple[Tensor, ...], epsilon: float
) -> tuple[Value, ...]:
    dependence = e.tracer.dependence(images)
    if dependence.axis != 0 or dependence.outer != 1:
        raise UnsupportedOperator(_BATCH_FIRST)
    n, channels, *places = images.shape
    positions = places[0] * places[1]
    share = op.get_attr("exponential_avg_factor") if "V3" in op.type else 1.0
    out, _, _, mean, variance = e.tracer.emit_all(
        NativeBatchNormOp,
        nn.reshape(images, (n, channels, positions)),
        *others,
        e.tracer.valid_samples(),
        rows=dependence.rows,
        momentum=share,
        eps=epsilon,
    )
    return as_given(op, nn.reshape(out, images.shape)), mean, variance


def _normalized_rows(
    e: GraphEmission, op: Any, images: Tensor, scales: tuple[Value, ...]
) -> tuple[Value, ...]:
    """Layer normalization as Keras has it: the rows of all samples as channels of one image.

    Shapes: images [1, rows, H, W]; scales, of ones and of zeros, [rows]
    Source: tf_keras.layers.LayerNormalization.call
    """
    are_plain = all(
        isinstance(each, np.ndarray) and bool((each == value).all())
        for each, value in zip(scales, (1, 0), strict=True)
    )
    if images.shape[0] != 1 or not are_plain:
        raise UnsupportedOperator(_BATCH_FIRST)
    _, rows, *places = images.shape
    count = places[0] * places[1]
    values = nn.reshape(images, (rows, count))
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    out = e.emit(NativeLayerNormOp, values, ones, zeros, eps=op.get_attr("epsilon"))
    mean = nn.mean(values, axis=1)
    distances = values - nn.reshape(mean, (rows, 1))
    variance = nn.sum(distances * distances, axis=1) / max(1, count - 1)
    return as_given(op, nn.reshape(out, images.shape)), mean, variance


EMITTERS: dict[str, Emitter] = {
    "FusedBatchNorm": batch_norm,
    "FusedBatchNormV2": batch_norm,
    "FusedBatchNormV3": batch_norm,
}
