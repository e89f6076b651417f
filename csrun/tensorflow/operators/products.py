"""Matrix products, sums of neighbors, and biases."""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun import nn
from csrun.cirh.ops.arithmetic import AddOp
from csrun.cirh.ops.products import MatmulOp, MmOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value


def mat_mul(e: GraphEmission, op: Any, a: Value, b: Value) -> Value:
    """Shapes: [m, k] x [k, n] -> [m, n], each transposed where the operator says so"""
    x, y = e.tensor(a), e.tensor(b)
    if op.get_attr("transpose_a"):
        x = e.emit(TransposeOp, x)
    if op.get_attr("transpose_b"):
        y = e.emit(TransposeOp, y)
    return e.emit(MmOp, x, y)


def batch_mat_mul(e: GraphEmission, op: Any, a: Value, b: Value) -> Value:
    """Shapes: [..., m, k] x [..., k, n] -> [..., m, n]"""
    x, y = e.tensor(a), e.tensor(b)
    if op.get_attr("adj_x"):
        x = _swapped(x)
    if op.get_attr("adj_y"):
        y = _swapped(y)
    return nn.matmul(x, y) if len(y.shape) == 2 else e.emit(MatmulOp, x, y)


def _swapped(x: Tensor) -> Tensor:
    *leading, rows, columns = range(len(x.shape))
    return nn.transpose(x, (*leading, columns, rows))


def multiply_axis(e: GraphEmission, x: Tensor, axis: int, matrix: npt.NDArray[Any]) -> Tensor:
    """Return products of a constant matrix and each line of an axis.

    Shapes: x [..., N, ...], matrix [M, N] -> [..., M, ...]
    """
    rank = len(x.shape)
    places = [n for n in range(rank) if n != axis % rank] + [axis % rank]
    found = nn.matmul(nn.transpose(x, places), e.tensor(np.ascontiguousarray(matrix.T)))
    return nn.transpose(found, np.argsort(places).tolist())


def normalize_responses(e: GraphEmission, op: Any, x: Value) -> Value:
    """Local response normalization, over neighboring channels. Shapes: [N, H, W, C] -> the same

    Source: tf.raw_ops.LRN
    """
    value = e.tensor(x)
    rows, columns = np.indices((value.shape[-1],) * 2)
    is_near = np.abs(rows - columns) <= op.get_attr("depth_radius")
    sums = multiply_axis(e, value * value, -1, is_near.astype(np.float32))
    alpha, bias, beta = (float(op.get_attr(name)) for name in ("alpha", "bias", "beta"))
    return value / (sums * alpha + bias) ** beta


def bias_add(e: GraphEmission, op: Any, x: Value, bias: Value) -> Value:
    """Shapes: x [..., C], or [N, C, ...] where channels come first; bias [C]"""
    values, row = e.tensor(x), e.tensor(bias)
    if op.get_attr("data_format") == b"NCHW":
        row = nn.reshape(row, (*row.shape, *(1,) * (len(values.shape) - 2)))
    return e.emit(AddOp, values, row)


def einsum(e: GraphEmission, op: Any, *operands: Value) -> Value:
    """Sum of products over the labels that are not in the result.

    Raises: UnsupportedOperator for an ellipsis, a label twice in one operand, or 3 operands
    """
    terms, _, wanted = op.get_attr("equation").decode().replace(" ", "").partition("->")
    labels = terms.split(",")
    if "." in terms or len(labels) > 2 or any(len(set(each)) < len(each) for each in labels):
        raise UnsupportedOperator(
            f"{terms}->{wanted}: one or two operands are supported, each label once in an operand: "
            "split it into several"
        )
    others = [set(wanted).union(*labels[:n], *labels[n + 1 :]) for n in range(len(labels))]
    pairs = zip(map(e.tensor, operands), labels, others, strict=True)
    summed = [_summed(x, own, kept) for x, own, kept in pairs]
    found, order = summed[0] if len(summed) == 1 else _product(e, summed[0], summed[1], wanted)
    return nn.transpose(found, [order.index(label) for label in wanted])


def _summed(x: Tensor, labels: str, kept: set[str]) -> tuple[Tensor, str]:
    """Return the sum over labels that occur nowhere else, and the other labels."""
    axes = [axis for axis, label in enumerate(labels) if label not in kept]
    found = nn.sum(x, axes) if axes else x
    return found, "".join(label for label in labels if label in kept)


def _product(
    e: GraphEmission, left: tuple[Tensor, str], right: tuple[Tensor, str], wanted: str
) -> tuple[Tensor, str]:
    """Return the product of two operands as a matrix product, and its labels."""
    (x, of_x), (y, of_y) = left, right
    batch = "".join(n for n in of_x if n in of_y and n in wanted)
    inner = "".join(n for n in of_x if n in of_y and n not in wanted)
    rows, columns = ("".join(n for n in own if n not in batch + inner) for own in (of_x, of_y))
    sizes = dict(zip(of_x + of_y, x.shape + y.shape, strict=True))

    def arranged(value: Tensor, labels: str, *groups: str) -> Tensor:
        value = nn.transpose(value, [labels.index(n) for n in "".join(groups)])
        return nn.reshape(value, [prod(sizes[n] for n in group) for group in groups])

    if batch:
        a, b = arranged(x, of_x, batch, rows, inner), arranged(y, of_y, batch, inner, columns)
        found = e.emit(MatmulOp, a, b)
    else:
        found = e.emit(MmOp, arranged(x, of_x, rows, inner), arranged(y, of_y, inner, columns))
    order = batch + rows + columns
    return nn.reshape(found, [sizes[n] for n in order]), order


EMITTERS: dict[str, Emitter] = {
    "MatMul": mat_mul,
    "BatchMatMul": batch_mat_mul,
    "BatchMatMulV2": batch_mat_mul,
    "BatchMatMulV3": batch_mat_mul,
    "LRN": normalize_responses,
    "BiasAdd": bias_add,
    "Einsum": einsum,
}
