"""Matrix products and biases."""

from typing import Any

from csrun import nn
from csrun.cirh.ops.arithmetic import AddOp
from csrun.cirh.ops.products import MatmulOp, MmOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.nn import Tensor
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


def bias_add(e: GraphEmission, op: Any, x: Value, bias: Value) -> Value:
    """Shapes: x [..., C], or [N, C, ...] where channels come first; bias [C]"""
    values, row = e.tensor(x), e.tensor(bias)
    if op.get_attr("data_format") == b"NCHW":
        row = nn.reshape(row, (*row.shape, *(1,) * (len(values.shape) - 2)))
    return e.emit(AddOp, values, row)


EMITTERS: dict[str, Emitter] = {
    "MatMul": mat_mul,
    "BatchMatMul": batch_mat_mul,
    "BatchMatMulV2": batch_mat_mul,
    "BatchMatMulV3": batch_mat_mul,
    "BiasAdd": bias_add,
}
