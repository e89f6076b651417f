"""Every activation function in compiled programs, in a layer and on its own, against PyTorch."""

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


def trace(function, mode):
    """x W, the activation twice on its own, and the product's values for the host."""
    with Tracer("float64") as tracer:
        x = tracer.input("features", (16, 6), "float64")
        labels = tracer.input("labels", (16,), "int32")
        product = nn.Dense(5, use_bias=False)(x)
        logits = function(function(product))
        loss = nn.softmax_cross_entropy(logits, labels)
        train_op = nn.SGD(0.0).minimize(loss)
        return tracer.finish(mode, loss, train_op, [("product", product), ("logits", logits)])


@pytest.mark.parametrize("mode", [RunMode.TRAIN, RunMode.EVAL])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_on_its_own_is_pytorchs(tmp_path, name, mode):
    module = trace(ACTIVATIONS[name], mode)
    options = options_of(run_mode=mode)
    random = np.random.default_rng(2)
    kernel = random.standard_normal((6, 5))
    executable = compile_model(module, tmp_path, options).executable
    machine = Machine(executable, {"dense/kernel": kernel})
    batch = random.standard_normal((16, 6)), random.integers(0, 5, 16).astype(np.int32)
    weights = torch.from_numpy(kernel.copy()).requires_grad_()
    product = torch.from_numpy(batch[0]) @ weights
    logits = PEERS[name](PEERS[name](product))
    expected = functional.cross_entropy(logits, torch.from_numpy(batch[1]).long())
    expected.backward()
    if mode is RunMode.TRAIN:
        loss, gradients = machine.train(batch)
        check(gradients["dense/kernel"], weights.grad, 1e-12)
    else:
        loss = machine.evaluate(batch)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    check(machine.output("product"), product.detach(), 1e-14)
    check(machine.output("logits"), logits.detach(), 1e-12)
