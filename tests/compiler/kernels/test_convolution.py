"""Convolutions in compiled programs, forward and backward, against PyTorch."""

import numpy as np
import pytest
from support.images import Case, check, stepped
from support.programs import ArrayData, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.convolution import ConvolutionOp
from csrun.compiler import compile_model
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")

functional = torch.nn.functional
TOLERANCES = {"float32": 3e-6, "float64": 1e-13}


def case(shape, filters, use_bias=True, **options):
    """An image layer, and the PyTorch function to compare with."""
    layer = nn.Conv2D(filters, use_bias=use_bias, **options)
    names = {name: value for name, value in options.items() if name != "kernel_size"}

    def peer(x, kernel, bias=None):
        return functional.conv2d(x, kernel, bias, **names)

    return Case(layer, peer, shape)


CASES = {
    "plain": case((3, 2, 7, 6), 4, kernel_size=3),
    "padded": case((3, 2, 7, 6), 4, kernel_size=3, padding=1),
    "same": case((3, 2, 7, 6), 4, kernel_size=(3, 5), padding="same"),
    "strided": case((3, 3, 9, 8), 4, False, kernel_size=(3, 2), stride=(2, 3), padding=(1, 0)),
    "pixels_nobody_sees": case((3, 1, 8, 8), 2, kernel_size=2, stride=3),
    "dilated": case((3, 2, 9, 9), 3, kernel_size=3, dilation=(2, 3), padding=(2, 3)),
    "groups": case((3, 6, 5, 5), 4, kernel_size=3, groups=2, padding=1),
    "by_channel": case((3, 4, 6, 6), 8, kernel_size=3, groups=4),
    "pixels": case((3, 5, 4, 4), 6, kernel_size=1),
    "pixels_in_groups": case((3, 6, 4, 4), 4, False, kernel_size=1, groups=2),
    "pixels_strided": case((3, 3, 5, 5), 4, kernel_size=1, stride=2),
    "pixels_padded": case((3, 3, 4, 4), 4, kernel_size=1, padding=1),
    "one_place": case((3, 3, 3, 3), 5, kernel_size=3),
    "one_channel": case((3, 1, 5, 1), 1, kernel_size=(3, 1)),
    "mostly_padding": case((3, 2, 1, 2), 2, kernel_size=5, padding=4, stride=2),
    "a_tile_of_two": case((3, 12, 40, 40), 2, kernel_size=3, padding=1),
}


@pytest.fixture(scope="module", params=TOLERANCES)
def stepped_cases(request, tmp_path_factory):
    """Step of all cases, computed once in each precision."""
    root = tmp_path_factory.mktemp(request.param)
    return stepped(root, CASES, request.param), TOLERANCES[request.param]


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_are_pytorchs(stepped_cases, name):
    found, tolerance = stepped_cases
    check(CASES[name], found[name], torch, tolerance)


def shared(x):
    """Two convolutions, one of them strided, share a kernel; their pixels are summed."""
    shape = (2, 2, 3, 3)
    with nn.scope("shared"):
        kernel = x.tracer.parameter("kernel", shape, nn.initializers.zeros(shape))
    options = {"dilation": (1, 1), "groups": 1, "padding": (1, 1)}
    for stride in ((1, 1), (2, 2)):
        x = x.tracer.emit(ConvolutionOp, x, kernel, stride=stride, **options)
    return x


@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_kernel_used_twice_has_one_gradient(tmp_path, mode):
    def peer(x, kernel):
        for stride in (1, 2):
            x = functional.conv2d(x, kernel, None, stride, 1)
        return x

    twice = Case(shared, peer, (2, 2, 5, 5))
    found = stepped(tmp_path, {"twice": twice}, mode=mode)
    check(twice, found["twice"], torch, 1e-13)


def network(batch):
    with Tracer("float64") as tracer:
        x = tracer.input("features", (batch, 2, 6, 6), "float64")
        labels = tracer.input("labels", (batch,), "int32")
        x = nn.Conv2D(3, 3, padding="same", activation="relu")(x)
        x = nn.Conv2D(4, 2, stride=2, activation="tanh")(x)
        loss = nn.softmax_cross_entropy(nn.Dense(5)(nn.flatten(x)), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.5).minimize(loss), [])


def test_minibatches_compute_what_the_batch_does(tmp_path):
    random = np.random.default_rng(1)
    batches = [(random.standard_normal((8, 2, 6, 6)), random.integers(0, 5, 8)) for _ in range(3)]
    data = [(images, labels.astype(np.int32)) for images, labels in batches]
    found = []
    for minibatches in (1, 4):
        options = options_of(minibatches_in_flight=minibatches)
        executable = compile_model(network(8 // minibatches), tmp_path, options).executable
        machine = CpuMachine(executable, ArrayData(data), RunSettings(seed=1), 0)
        initialize(executable.plan, machine.state, 1)
        assert machine.run(StepOrder(0, 3)).done == 3
        found.append({name: value.copy() for name, value in machine.state.items()})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert np.abs(value).max() > 0
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=1e-14)


def test_a_convolution_takes_axes_in_any_order(tmp_path):
    def layer(x):
        return nn.Conv2D(3, (2, 3))(nn.transpose(x, (0, 3, 1, 2)))

    def peer(x, kernel, bias):
        return functional.conv2d(x.permute(0, 3, 1, 2), kernel, bias)

    turned = Case(layer, peer, (2, 5, 4, 3))
    check(turned, stepped(tmp_path, {"turned": turned})["turned"], torch, 1e-13)
