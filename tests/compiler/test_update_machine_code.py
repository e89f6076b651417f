"""Weight updates of every optimizer in machine code: the bits of the NumPy form."""

from dataclasses import fields

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.machine_code import KernelCase
from support.programs import Network

from csrun import nn
from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.mode import ExecutionMode
from csrun.compiler.emit.update_loops import UpdateForm, UpdateLoops
from csrun.compiler.optimizers.adam import Adam, Lamb
from csrun.compiler.optimizers.adam_variants import Adamax, NAdam, RAdam
from csrun.compiler.optimizers.adaptive import Adadelta, Adagrad, RmsProp
from csrun.compiler.optimizers.descent import Sgd
from csrun.executable import Constant, Runtime, StepNumber, StepState, flat_views

pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

OPTIMIZERS = {
    "sgd": nn.SGD(0.1),
    "momentum": nn.SGD(0.1, 0.9, nesterov=True, weight_decay=0.01),
    "adam": nn.Adam(0.01),
    "clipped": nn.AdamW(0.01, weight_decay=0.1, clip_norm=1.0),
    "lamb": nn.Lamb(0.01),
    "rmsprop": nn.RMSProp(0.01),
    "adagrad": nn.Adagrad(0.1),
}


def updated(folder, optimizer, precision, kernels):
    """Store after three steps of random gradients with infinities, one of them clipped."""
    network = Network((9, 13, 5), optimizer=optimizer, precision=precision)
    executable = network.compile(folder / kernels, ExecutionMode.WEIGHT_STREAMING, kernels=kernels)
    store = np.zeros(executable.plan.store.nbytes, np.uint8)
    flat = flat_views(executable.plan, store)
    program = executable.update_program(store, Runtime(1))
    random = np.random.default_rng(3)
    for array in flat.values():
        array[...] = random.uniform(0.5, 1, array.shape)
    with np.errstate(all="ignore"):
        for index in range(3):
            for group in executable.plan.deliveries:
                gradients = flat[f"gradients/{group}"]
                gradients[...] = random.standard_normal(gradients.shape)
                gradients[:6] = 0.0, -0.0, 1e-30, 1e30, np.inf, np.nan
                program.update[group](StepState(index=index, clip=0.5 if index else 1.0))
    names = executable.kernels.manifest.kernels if executable.kernels else ()
    return {name: value.copy() for name, value in flat.items()}, names


KINDS = (Sgd, Adam, Lamb, Adamax, NAdam, RAdam, Adagrad, RmsProp, Adadelta)


def made(kind, flag, decay):
    """Optimizer with all of its options on or off."""
    given = {"learning_rate": Constant(0.01), "weight_decay": decay}
    others = {f.name: flag if f.type == "bool" or f.type is bool else 0.75 for f in fields(kind)}
    return kind(**{**others, **given})


@pytest.mark.parametrize("decay", [0.01, StepNumber(0)], ids=["fixed", "of the step"])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_loop_of_an_optimizer_has_the_bits_of_numpy(kind, flag, decay):
    gradients = np.random.default_rng(1).standard_normal(37)
    gradients[:6] = 0.0, -0.0, 1e-30, 1e30, np.inf, np.nan
    form = UpdateForm("float32", is_measured=True)
    check_bits(UpdateLoops.of(made(kind, flag, decay), form), gradients)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16, cbfloat16()], ids=lambda half: half.name)
@pytest.mark.parametrize("kind", [Sgd, Adam])
def test_loops_over_words_have_the_bits_of_numpy(kind, half):
    """Gradients with any 16-bit word."""
    words = np.random.default_rng(1).integers(0, 1 << 16, 37)
    form = UpdateForm("float32", True, half=half, reads_words=True, writes_words=True)
    check_bits(UpdateLoops.of(made(kind, True, 0.01), form), words)


def check_bits(loops, gradients):
    """Assert that both forms have equal bits, for any division, between guard pages."""
    for loop in loops.all:
        case = KernelCase(loop, {"gradients": gradients}, 37)
        numbers = [0.3 + 0.1 * place for place, _ in enumerate(loop.op.numbers)]
        with np.errstate(all="ignore"):
            wanted = case.by_numpy(*numbers)
        for bounds in ((0, 37), (0, 1, 5, 20, 37)):
            for at_end in (True, False):
                found = case.by_machine_code(*numbers, bounds=bounds, at_end=at_end)
                for name, value in wanted.items():
                    np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_has_the_bits_of_numpy(tmp_path, name, precision):
    found, names = updated(tmp_path, OPTIMIZERS[name], precision, "llvm")
    kind = type(OPTIMIZERS[name]).__name__.lower().removesuffix("w")
    assert any(each.startswith(kind) for each in names)
    wanted, _ = updated(tmp_path, OPTIMIZERS[name], precision, "numpy")
    for region, value in wanted.items():
        np.testing.assert_array_equal(found[region], value, err_msg=region)
