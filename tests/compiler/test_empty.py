"""Empty arrays and scalars in compiled programs, against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.executable import machine_code
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

KERNELS = ["numpy", *(["llvm"] if machine_code.is_supported() else [])]
FUNCTIONS = {
    "relu": (nn.relu, torch.relu),
    "gelu": (nn.gelu, torch.nn.functional.gelu),
    "softplus": (nn.softplus, torch.nn.functional.softplus),
    "arithmetic": (lambda x: abs(-x) * 2.0 + x**2, lambda x: abs(-x) * 2.0 + x**2),
    "sum": (lambda x: nn.sum(x, -1), lambda x: x.sum(-1)),
    "first axis": (lambda x: nn.sum(x, 0), lambda x: x.sum(0)),
    "kept": (lambda x: x * nn.sum(x, axis=-1, keepdims=True), lambda x: x * x.sum(-1, True)),
    "mean": (lambda x: nn.mean(x, -1), lambda x: x.mean(-1)),
    "softmax": (nn.softmax, lambda x: x.softmax(-1)),
    "a number": (lambda x: nn.exp(nn.sum(x, range(len(x.shape)))), lambda x: x.sum().exp()),
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_elements_give_what_pytorch_gives(tmp_path, name, kernels):
    ours, theirs = FUNCTIONS[name]
    for shape in ((4, 0), (4, 0, 3), (4, 3, 0), (4, 1)):
        with Tracer("float32") as tracer:
            y = ours(tracer.input("x", shape, "float32"))
            module = tracer.finish(RunMode.PREDICT, None, None, [("y", y)])
        options = options_of(run_mode=RunMode.PREDICT, kernels=kernels)
        machine = Machine(compile_model(module, tmp_path, options).executable, {})
        values = np.full(shape, 0.5, np.float32)
        machine.predict((values,))
        expected = theirs(torch.from_numpy(values)).numpy()
        assert machine.output("y").shape == expected.shape
        np.testing.assert_allclose(machine.output("y"), expected, rtol=1e-6)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_layer_of_no_features_trains_its_bias(tmp_path, mode, kernels):
    with Tracer("float32") as tracer:
        x = tracer.input("features", (4, 0), "float32")
        labels = tracer.input("labels", (4,), "int32")
        loss = nn.softmax_cross_entropy(nn.Dense(3)(x), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    executable = compile_model(module, tmp_path, options_of(mode, kernels=kernels)).executable
    machine = Machine(executable, {})
    bias = torch.zeros(3, requires_grad=True)
    targets = torch.tensor([0, 1, 1, 2])
    expected = torch.nn.functional.cross_entropy(bias.expand(4, 3), targets)
    expected.backward()
    loss, gradients = machine.train((np.empty((4, 0), np.float32), targets.int().numpy()))
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert gradients["dense/kernel"].shape == (0, 3)
    np.testing.assert_allclose(gradients["dense/bias"], bias.grad, rtol=1e-6)


def test_a_layer_of_no_elements_is_estimated(tmp_path):
    """The table of `PositionEmbedding` has no features, so that no weights are streamed."""
    with Tracer("float32") as tracer:
        x = tracer.input("features", (4, 3, 0), "float32")
        loss = nn.sum(nn.PositionEmbedding(3)(x), (0, 1, 2))
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    options = options_of(ExecutionMode.WEIGHT_STREAMING)
    plan = compile_model(module, tmp_path, options).executable.plan
    assert all(layer.transmission_samples_per_sec > 0 for layer in plan.estimate.layers)
