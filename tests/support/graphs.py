"""Small CIRH modules for tests, and the reference interpreter on them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module
from csrun.cirh.algorithms import SgdAttr
from csrun.cirh.ops.arithmetic import MulOp
from csrun.cirh.ops.learning import MinimizeOp
from csrun.cirh.ops.model import (
    Distribution,
    InitializerAttr,
    InputOp,
    LossOp,
    OutputOp,
    ParameterOp,
)
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.reference import ModuleResult, ModuleState, interpret
from csrun.cirh.types import shape_of, tensor_type, type_of

Expression = Callable[..., SSAValue]  # (builder, *operands)
SLOPE = "slope"


def input_type(array):
    """Type of a NumPy array."""
    return tensor_type(array.shape, str(array.dtype))


def module_of(expression: Expression, operands: Sequence[np.ndarray]) -> ModuleOp:
    """Module that takes the operands as inputs x0, x1, … and outputs `out`."""
    module = new_module("float64", RunMode.PREDICT)
    builder = Builder(InsertPoint.at_end(module.body.block))
    values = [builder.leaf(InputOp, input_type(a), symbol=f"x{i}") for i, a in enumerate(operands)]
    builder.effect(OutputOp, expression(builder, *values), symbol="out")
    module.verify()
    return module


def evaluate(expression: Expression, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Value of the expression on these operands, by the reference interpreter."""
    inputs = {f"x{i}": a for i, a in enumerate(operands)}
    return run(module_of(expression, operands), inputs, {}).outputs["out"]


def run(module: ModuleOp, inputs: Mapping, parameters: Mapping, rows: int = 1) -> ModuleResult:
    """Run a module, which must not change its inputs."""
    return interpret(module, dict(inputs), ModuleState(dict(parameters)), rows)


def differentiable(
    expression: Expression, operands: Sequence[np.ndarray], slope: np.ndarray
) -> ModuleOp:
    """Module to differentiate: sum(slope * expression), floating operands as parameters."""
    module = new_module("float64", RunMode.TRAIN)
    builder = Builder(InsertPoint.at_end(module.body.block), "layer")
    out = expression(builder, *(_leaf(builder, i, a) for i, a in enumerate(operands)))
    slopes = builder.leaf(InputOp, input_type(slope), symbol=SLOPE)
    weighted = builder.emit(MulOp, out, slopes)
    axes = tuple(range(len(shape_of(type_of(weighted)))))
    loss = builder.emit(SumOp, weighted, dims=axes, keepdim=False)
    builder.effect(LossOp, loss)
    builder.effect(MinimizeOp, loss, algorithm=SgdAttr.of(0.0, 0.0))
    module.verify()
    return module


def _leaf(builder: Builder, index: int, array: np.ndarray) -> SSAValue:
    if array.dtype.kind in "ib":
        return builder.leaf(InputOp, input_type(array), symbol=f"x{index}")
    zeros = InitializerAttr.of(Distribution.ZEROS)
    return builder.leaf(ParameterOp, input_type(array), symbol=f"x{index}", initializer=zeros)
