"""Reference models in mixed precision: widths of operators, loss after 300 steps, memory."""

from importlib import import_module
from math import log

import numpy as np
import pytest
from support.programs import options_of
from support.reference_models import MODELS, SMALL_MODELS, changed, small_groups, traced

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
from csrun.compiler.plan.store_layout import loads_of
from csrun.executable import machine_code
from csrun.executable.store_places import gradient_bytes
from csrun.params import load
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.step.scale_rows import scale_tracker
from csrun.runtime.store.disk_traffic import disk_traffic
from csrun.runtime.store.residency import least_bytes
from csrun.runtime.wire.messages import StepOrder

FORMATS = {each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16())}
STREAMING = ExecutionMode.WEIGHT_STREAMING
STEPS, ORDER = 300, 100
MODELS_OF_ALL = ("gpt2", "gptj", "bert", "fc_mnist")  # in all of them


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


def final_loss(params, folder, kind, last):
    """Mean of the last losses; in float16 small gradients need loss scaling."""
    if kind is FLOAT16:
        params = changed(params, "optimizer", loss_scaling_factor="dynamic")
    module = traced(params)
    if kind is not None:
        set_storage(module, kind)
    kernels = "llvm" if machine_code.is_supported() else "numpy"
    executable = compile_model(module, folder, small_groups(STREAMING, kernels)).executable
    dataset = import_module("data").train_input_fn(params)
    machine = CpuMachine(executable, dataset, RunSettings(), 0)
    machine.initialize()
    scale = scale_tracker(machine.plan, machine.numbers, None)
    for first in range(0, STEPS, ORDER):
        if scale is not None:
            scale.begin(first)
        machine.run(StepOrder(first, ORDER))
        if scale is not None:
            scale.finish(first, ORDER, lambda *_: None)
    return np.mean(machine.losses(ORDER)[-last:])


def shipped(name, file):
    return load(import_module("params").Params, MODELS / name / "configs" / file)


def params_of(name, folder):
    if name in SMALL_MODELS:
        return SMALL_MODELS[name].params(folder)
    # Ten layers of 50 take another path in float64, too: their loss is 30 % off after 300 steps.
    return shipped(name, "params_500_300.yaml")


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("gpt2", [BFLOAT16]),  # that with the fewest bits
        *(pytest.param(name, FORMATS.values(), marks=pytest.mark.slow) for name in MODELS_OF_ALL),
    ],
)
def test_the_loss_after_300_steps_is_near_float32s(tmp_path, request, name, formats):
    request.getfixturevalue(name)
    params, last = params_of(name, tmp_path), 10 if name in SMALL_MODELS else ORDER
    expected = final_loss(params, tmp_path, None, last)
    for kind in formats:
        assert final_loss(params, tmp_path, kind, last) == pytest.approx(expected, rel=0.01), kind


@pytest.mark.slow
def test_the_cnn_learns_in_16_bits_as_in_float32(tmp_path, cnn_mnist):
    """Within 1 % of ln 10, the loss of a guess; at the end the loss is 3 % of that.

    Relative to the loss at the end there is no such limit, as small differences grow. Over four
    seeds PyTorch with the same roundings ends 6 % below to 28 % above float32. PyTorch in float32
    from first weights that differ by 2^-10 ends 5 % below to 28 % above, over three of the seeds.
    test_cnn_precision.py compares a step.
    """
    params = shipped("cnn_mnist", "params.yaml")
    expected = final_loss(params, tmp_path, None, ORDER)
    assert expected < 0.04 * log(10)
    for kind in FORMATS.values():
        found = final_loss(params, tmp_path, kind, ORDER)
        assert found == pytest.approx(expected, abs=0.01 * log(10)), kind


def streamed_bytes(plan):
    """Bytes between wafer and MemoryX per step."""
    loads = loads_of(plan.order)
    sent = sum(count * plan.groups[group].sent_bytes for group, count in loads.items())
    return sent + sum(gradient_bytes(plan, plan.groups[group]) for group in plan.deliveries)


def disk_bytes(plan):
    """Bytes per training step between a store with the least memory and its disk."""
    traffic = disk_traffic(plan, least_bytes(plan))
    return traffic.read_bytes + traffic.written_bytes


def test_gpt2_small_takes_half_of_the_memory_and_the_traffic(tmp_path, gpt2):
    lengths = dict.fromkeys(("sequence_length", "max_position_embeddings"), 256)
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_heads": 12, **lengths}
    params = SMALL_MODELS["gpt2"].params(tmp_path, **sizes)
    plans = []
    for kind in (None, BFLOAT16):
        module = traced(params)
        if kind is not None:
            set_storage(module, kind)
        plans.append(compile_model(module, tmp_path, options_of(STREAMING)).executable.plan)
    whole, half = plans
    assert half.arena_bytes <= 0.55 * whole.arena_bytes
    assert 0.45 * streamed_bytes(whole) <= streamed_bytes(half) <= 0.55 * streamed_bytes(whole)
    assert half.store.nbytes <= whole.store.nbytes  # without a copy of the weights in 16 bits
    # bytes per weight of AdamW with clipping, in docs/precision.md
    assert disk_bytes(half) / disk_bytes(whole) == pytest.approx(32 / 36, rel=0.01)
