"""Transformers in mixed precision: widths of their operators, and their loss after 300 steps."""

from importlib import import_module

import numpy as np
import pytest
from support.reference_models import SMALL_MODELS, small_groups, traced

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.cirh import set_storage
from csrun.cirh.ops.base import ElementwiseOp
from csrun.cirh.ops.half import NarrowHalfOp, RoundHalfOp, WidenHalfOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import VIEWS, CloneOp
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler import compile_model
from csrun.compiler.passes import run_passes
from csrun.compiler.passes.widths import Width, half_results, width_of
from csrun.executable import machine_code
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

FORMATS = {each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16())}
STREAMING = ExecutionMode.WEIGHT_STREAMING
STEPS, ORDER = 300, 100


def readers(value):
    for use in value.uses:
        if isinstance(use.operation, VIEWS):
            yield from readers(use.operation.out)
        else:
            yield use.operation


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_each_operator_has_its_width(tmp_path, request, name):
    request.getfixturevalue(name)
    module = traced(SMALL_MODELS[name].params(tmp_path))
    set_storage(module, BFLOAT16)
    run_passes(module)
    roundings = 0
    for op in module.ops:
        floats = [r for r in op.results if is_float(type_of(r)) and shape_of(type_of(r))]
        assert width_of(op) is not None or not floats or isinstance(op, RoundHalfOp), op.name
        roundings += isinstance(op, RoundHalfOp | NarrowHalfOp)
        for number, result in enumerate(floats):
            if isinstance(op, RoundHalfOp | WidenHalfOp | CloneOp):
                continue
            found = list(readers(result))
            is_rounded = found and all(isinstance(x, RoundHalfOp | NarrowHalfOp) for x in found)
            is_passed_on = len(found) == 1 and isinstance(found[0], ElementwiseOp | SumOp)
            if number < half_results(op):
                is_number = not found or (op.operands and not is_float(type_of(op.operands[0])))
                assert is_rounded or is_passed_on or is_number, op.name
            elif width_of(op) is Width.FLOAT32:
                assert not is_rounded or isinstance(op, SumOp), op.name
        if isinstance(op, UpdatingOp):
            base = op.grad
            while isinstance(base.owner, VIEWS):
                base = base.owner.x
            assert isinstance(base.owner, NarrowHalfOp)
    assert roundings > 50


def final_loss(params, folder, kind):
    """The mean of the last ten losses."""
    module = traced(params)
    if kind is not None:
        set_storage(module, kind)
    kernels = "llvm" if machine_code.is_supported() else "numpy"
    executable = compile_model(module, folder, small_groups(STREAMING, kernels)).executable
    dataset = import_module("data").train_input_fn(params)
    machine = CpuMachine(executable, dataset, RunSettings(), 0)
    machine.initialize()
    for first in range(0, STEPS, ORDER):
        machine.run(StepOrder(first, ORDER))
    return np.mean(machine.losses(ORDER)[-10:])


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_loss_after_300_steps_is_near_float32s(tmp_path, request, name):
    request.getfixturevalue(name)
    params = SMALL_MODELS[name].params(tmp_path)
    expected = final_loss(params, tmp_path, None)
    for kind in FORMATS.values():
        assert final_loss(params, tmp_path, kind) == pytest.approx(expected, rel=0.01), kind
