"""Gradients of cnn_mnist in mixed precision, against PyTorch with the same roundings."""

from importlib import import_module
from itertools import product

import msgspec
import numpy as np
import pytest
from support.programs import ArrayData
from support.reference_models import (
    MODELS,
    batches,
    changed,
    one_thread,
    small_groups,
    traced,
)
from support.roundings import storing
from support.torch_cnn import TorchCnn

from csrun import nn
from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.cirh import set_storage
from csrun.compiler import compile_model
from csrun.executable import machine_code
from csrun.params import load
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of mixed precision")

FORMATS = {each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16())}
#: Units of the format. Sums of NumPy kernels round as those of PyTorch: most errors are 0. Sums in
#: another order round some numbers to the other neighbour, which moves a gradient by up to half a
#: unit. Without a rounding of one operator some gradient is off by 0.6 units or more.
LIMITS = {"numpy": 0.4, **({"llvm": 1.0} if machine_code.is_supported() else {})}


@pytest.fixture
def params(cnn_mnist):
    """Network small enough that no summation order flips a ReLU or the index of a maximum."""
    shipped = MODELS / "cnn_mnist" / "configs" / "params.yaml"
    params = load(import_module("params").Params, shipped)
    params = changed(params, "model", filters=(4, 5), hidden_size=8)
    params = changed(params, "train_input", batch_size=16)
    return msgspec.structs.replace(params, optimizer=nn.SGD(1.0))


def one_step(params, folder, kind, kernels, batch):
    """Random first weights, and gradients of a step of SGD with a learning rate of 1."""
    module = traced(params)
    set_storage(module, kind)
    options = small_groups(ExecutionMode.WEIGHT_STREAMING, kernels)
    executable = compile_model(module, folder, options).executable
    machine = CpuMachine(executable, ArrayData([tuple(batch)]), RunSettings(), 0)
    machine.initialize()
    random = np.random.default_rng(5)
    parameters, first = executable.plan.parameters, {}
    for p in parameters:
        if not p.is_state:
            drawn = 0.2 * random.standard_normal(p.shape) + ("gamma" in p.name)
            machine.state[p.name][...] = drawn
        first[p.name] = machine.state[p.name].astype(np.float64)
    assert machine.run(StepOrder(0, 1)).done == 1
    trained = [p.name for p in parameters if not p.is_state]
    return first, {name: first[name] - machine.state[name] for name in trained}


def one_is_quick(name, kernels):
    """All formats with NumPy kernels; only bfloat16, the least precise, in machine code."""
    is_slow = kernels == "llvm" and name != BFLOAT16.name
    return pytest.param(name, kernels, marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize(
    ("name", "kernels"), [one_is_quick(*each) for each in product(FORMATS, LIMITS)]
)
def test_a_step_has_the_gradients_of_pytorch_with_the_same_roundings(
    tmp_path, params, name, kernels
):
    kind = FORMATS[name]
    ((batch, (features, labels)),) = batches(params, 1, "float32")
    first, gradients = one_step(params, tmp_path, kind, kernels, batch)
    peer = TorchCnn(torch, first, params.model, storing(torch, kind))
    with one_thread(torch):
        _, slopes = peer.step(features.astype(np.float64), labels)
    assert slopes.keys() == gradients.keys()
    for parameter, expected in slopes.items():
        error = np.linalg.norm(gradients[parameter] - expected) / np.linalg.norm(expected)
        assert error < LIMITS[kernels] * kind.epsilon, parameter
