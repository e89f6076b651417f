"""Every activation function in a layer, and at special values, against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, Network, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.nn.activations import ACTIVATIONS
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the activations")
functional = torch.nn.functional

PEERS = {
    name: getattr(functional, name)
    for name in ACTIVATIONS
    if name not in ("gelu_tanh", "sigmoid", "tanh")
}
PEERS |= {
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
PRECISIONS = {"float32": 2e-5, "float64": 1e-12}


def test_every_activation_has_a_peer():
    assert PEERS.keys() == ACTIVATIONS.keys()


def check(ours, theirs, tolerance):
    theirs = np.asarray(theirs)
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_layers_activation_is_pytorchs(tmp_path, name, precision):
    network = Network(activation=name, precision=precision, learning_rate=0.0)
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 300)
    assert "activation" not in (executable.directory / "kernels.txt").read_text()  # all fused
    machine = Machine(executable, network.parameters())
    for batch in network.batches(2):
        tensors = {
            tensor: torch.from_numpy(value).double().requires_grad_()
            for tensor, value in network.parameters().items()
        }
        x = torch.from_numpy(batch[0]).double().flatten(1)
        for layer in ("dense", "dense_1"):
            x = PEERS[name](x @ tensors[f"{layer}/kernel"] + tensors[f"{layer}/bias"])
        logits = x @ tensors["dense_2/kernel"] + tensors["dense_2/bias"]
        expected = functional.cross_entropy(logits, torch.from_numpy(batch[1]).long())
        expected.backward()
        loss, gradients = machine.train(batch)
        assert loss == pytest.approx(expected.item(), rel=PRECISIONS[precision])
        for tensor_name, tensor in tensors.items():
            check(gradients[tensor_name], tensor.grad, PRECISIONS[precision])


INF, NAN = float("inf"), float("nan")
VALUES = np.array([-1.0, -INF, 0.0, 2.0, 6.0, 7.0, INF, NAN])
SLOPES = np.array([INF, NAN, INF, 3.0, 2.0, 5.0, 0.5, 2.0])  # of the loss, by each value


def special(name, precision, layer):
    """Sum of activations of special values, each weighted by a slope that may be special, too."""
    with Tracer(precision) as tracer:
        x = tracer.input("features", (8, 1), precision)
        slopes = tracer.input("labels", (8, 1), precision)
        if layer:
            y = nn.Dense(1, activation=name, name="dense")(x)
        else:
            y = ACTIVATIONS[name](x * 1.0 + _bias(tracer))
        loss = nn.sum(y * slopes, axis=(0, 1))
        train_op = nn.SGD(0.0).minimize(loss)
        return tracer.finish(RunMode.TRAIN, loss, train_op, [("y", y)])


def _bias(tracer):
    with tracer.layer("dense", "dense"):
        return tracer.parameter("bias", (1,), nn.initializers.zeros((1,)))


@pytest.mark.parametrize("layer", [True, False])
@pytest.mark.parametrize(
    ("name", "precision"),
    [("relu", "float32"), ("relu", "float64"), ("relu6", "float32")],  # its float64 has NaN dead
)
def test_what_is_not_finite_goes_through_as_pytorchs_does(tmp_path, name, precision, layer):
    """The gradient of a dead unit is 0 for any incoming gradient, that of a NaN is not."""
    executable = compile_model(special(name, precision, layer), tmp_path, options_of()).executable
    machine = Machine(executable, {"dense/kernel": np.ones((1, 1))} if layer else {})
    batch = VALUES.astype(precision)[:, None], SLOPES.astype(precision)[:, None]
    bias = torch.zeros(1, dtype=getattr(torch, precision), requires_grad=True)
    y = PEERS[name](torch.from_numpy(batch[0]) + bias)
    y.backward(torch.from_numpy(batch[1]))
    with np.errstate(all="ignore"):
        _, gradients = machine.train(batch)
    np.testing.assert_array_equal(machine.output("y"), y.detach())
    assert np.isfinite(bias.grad.item())
    np.testing.assert_array_equal(gradients["dense/bias"], bias.grad)


@pytest.mark.parametrize("slope", [0.0, 0.25, 1.0])
def test_a_leaky_relu_of_infinity_is_pytorchs(tmp_path, slope):
    with Tracer("float64") as tracer:
        y = nn.leaky_relu(tracer.input("x", (8,), "float64"), slope)
        module = tracer.finish(RunMode.PREDICT, None, None, [("y", y)])
    options = options_of(run_mode=RunMode.PREDICT)
    machine = Machine(compile_model(module, tmp_path, options).executable, {})
    machine.predict((VALUES,))
    expected = functional.leaky_relu(torch.from_numpy(VALUES), slope)
    np.testing.assert_array_equal(machine.output("y"), expected)
