"""Updates of all optimizers in compiled programs, with decay and schedules, against torch.optim."""

import re

import numpy as np
import pytest
from support.optimizers import Lamb, TensorFlowAdam
from support.programs import Machine, Network

from csrun import nn
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.executable import Runtime, StepState

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the optimizers")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

MODES = (ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING)

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
ADAGRAD, RMSPROP = torch.optim.Adagrad, torch.optim.RMSprop
CASES = {
    "sgd": (nn.SGD(0.05), lambda p: SGD(p, lr=0.05)),
    "nesterov": (
        nn.SGD(0.05, momentum=0.8, nesterov=True),
        lambda p: SGD(p, lr=0.05, momentum=0.8, nesterov=True),
    ),
    "sgd-decay": (
        nn.SGD(0.05, momentum=0.8, weight_decay=0.02),
        lambda p: SGD(p, lr=0.05, momentum=0.8, weight_decay=0.02),
    ),
    "sgd-tiny-decay": (
        nn.SGD(0.05, momentum=0.8, weight_decay=1e-42),
        lambda p: SGD(p, lr=0.05, momentum=0.8, weight_decay=1e-42),
    ),
    "nesterov-tiny-momentum": (
        nn.SGD(0.05, momentum=1e-42, nesterov=True, weight_decay=1e-14),
        lambda p: SGD(p, lr=0.05, momentum=1e-42, nesterov=True, weight_decay=1e-14),
    ),
    "adam-tiny-decay": (
        nn.Adam(0.01, weight_decay=1e-42),
        lambda p: ADAM(p, lr=0.01, weight_decay=1e-42),
    ),
    "adam": (nn.Adam(0.01), lambda p: ADAM(p, lr=0.01)),
    "adam-numbers": (
        nn.Adam(0.01, beta1=0.7, beta2=0.95, epsilon=1e-3, weight_decay=0.02),
        lambda p: ADAM(p, lr=0.01, betas=(0.7, 0.95), eps=1e-3, weight_decay=0.02),
    ),
    "adam-no-betas": (
        nn.Adam(0.01, beta1=0.0, beta2=0.0),
        lambda p: ADAM(p, lr=0.01, betas=(0.0, 0.0)),
    ),
    "adamw": (nn.AdamW(0.01, weight_decay=0.1), lambda p: ADAMW(p, lr=0.01, weight_decay=0.1)),
    "adam-tensorflow": (
        nn.Adam(0.01, epsilon=1e-3, epsilon_hat=True),
        lambda p: TensorFlowAdam(p, 0.01, epsilon=1e-3),
    ),
    "adam-biased": (
        nn.Adam(0.01, epsilon=1e-3, bias_correction=False),
        lambda p: TensorFlowAdam(p, 0.01, epsilon=1e-3, bias_correction=False),
    ),
    "lamb": (nn.Lamb(0.01), lambda p: Lamb(p, 0.01)),
    "lamb-numbers": (
        nn.Lamb(0.01, 0.7, 0.95, 1e-3, bias_correction=False, weight_decay=0.0),
        lambda p: Lamb(p, 0.01, (0.7, 0.95), 1e-3, 0.0, correct=False),
    ),
    "adagrad": (nn.Adagrad(0.05), lambda p: ADAGRAD(p, lr=0.05)),
    "adagrad-numbers": (
        nn.Adagrad(0.05, 0.1, 0.2, 1e-3, weight_decay=0.02),
        lambda p: ADAGRAD(
            p, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.2, eps=1e-3, weight_decay=0.02
        ),
    ),
    "rmsprop": (nn.RMSProp(0.01), lambda p: RMSPROP(p, lr=0.01)),
    "rmsprop-momentum": (
        nn.RMSProp(0.01, 0.9, 1e-3, momentum=0.8, weight_decay=0.02),
        lambda p: RMSPROP(p, lr=0.01, alpha=0.9, eps=1e-3, momentum=0.8, weight_decay=0.02),
    ),
    "rmsprop-centered": (
        nn.RMSProp(0.001, 0.9, 1e-3, momentum=0.8, centered=True),
        lambda p: RMSPROP(p, lr=0.001, alpha=0.9, eps=1e-3, momentum=0.8, centered=True),
    ),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Limit PyTorch to one thread, as waking others takes longer than these layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Peer:
    """A network in PyTorch with an optimizer."""

    def __init__(self, parameters, make):
        self.tensors = {
            name: torch.from_numpy(value.copy()).requires_grad_()
            for name, value in parameters.items()
        }
        self.optimizer = make(list(self.tensors.values()))

    def train(self, batch):
        """Train a step; return the gradients."""
        x = torch.from_numpy(batch[0]).flatten(1)
        layers = [name.removesuffix("/kernel") for name in self.tensors if "kernel" in name]
        for layer in layers:
            x = x @ self.tensors[f"{layer}/kernel"] + self.tensors[f"{layer}/bias"]
            x = x.relu() if layer != layers[-1] else x
        labels = torch.from_numpy(batch[1]).long()
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(x, labels, ignore_index=IGNORE_INDEX).backward()
        self.optimizer.step()


def close(machine, peer, tolerance):
    for name, tensor in peer.tensors.items():
        np.testing.assert_allclose(
            machine.state[name], tensor.detach().numpy(), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_steps_in_float64_are_pytorchs(tmp_path, mode, name):
    optimizer, make = CASES[name]
    network = Network(precision="float64", optimizer=optimizer)
    machine = Machine(network.compile(tmp_path, mode, 300), network.parameters())
    peer = Peer(network.parameters(), make)
    for step, batch in enumerate(network.batches(100)):
        machine.train(batch)
        peer.train(batch)
        close(machine, peer, 1e-10 if step < 50 else 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_updates_in_float32_from_equal_gradients_are_pytorchs(tmp_path, name):
    optimizer, make = CASES[name]
    network = Network(optimizer=optimizer, sizes=(784, 50, 10), batch=32)
    executable = network.compile(tmp_path, ExecutionMode.PIPELINED)
    machine, peer = Machine(executable, network.parameters()), Peer(network.parameters(), make)
    for batch in network.batches(5):
        _, gradients = machine.train(batch)
        for name, tensor in peer.tensors.items():
            tensor.grad = torch.from_numpy(gradients[name])
        peer.optimizer.step()
        close(machine, peer, 1e-5)


def test_excluded_parameters_do_not_decay(tmp_path):
    optimizer = nn.AdamW(0.01, weight_decay=0.1, exclude_from_weight_decay=("bias$", "dense_2/"))
    network = Network(precision="float64", optimizer=optimizer)
    executable = network.compile(tmp_path, ExecutionMode.PIPELINED)
    parameters = network.parameters()
    excluded = [n for n in parameters if n.endswith("bias") or n.startswith("dense_2/")]
    assert 0 < len(excluded) < len(parameters)
    machine, peer = Machine(executable, parameters), Peer(parameters, lambda p: ADAMW(p))
    groups = [
        {
            "params": [t for n, t in peer.tensors.items() if (n in excluded) is out],
            "weight_decay": d,
        }
        for out, d in ((True, 0.0), (False, 0.1))
    ]
    peer.optimizer = ADAMW(groups, lr=0.01)
    for batch in network.batches(20):
        machine.train(batch)
        peer.train(batch)
    close(machine, peer, 1e-9)


def test_a_schedule_sets_every_steps_rate(tmp_path):
    rate = nn.schedules.Cosine(initial_learning_rate=0.02, steps=15, warmup_steps=5)
    network = Network(precision="float64", optimizer=nn.AdamW(rate, weight_decay=0.1))
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 300)
    machine = Machine(executable, network.parameters())
    peer = Peer(network.parameters(), lambda p: ADAMW(p, lr=0.02, weight_decay=0.1))
    for step, batch in enumerate(network.batches(25)):
        peer.optimizer.param_groups[0]["lr"] = rate.at(step)
        machine.train(batch)
        peer.train(batch)
        close(machine, peer, 1e-9)
    assert executable.plan.learning_rate == rate


def test_adams_state_is_pytorchs_moments_but_for_a_factor(tmp_path):
    network = Network(precision="float64", optimizer=nn.Adam(0.01))
    machine = Machine(network.compile(tmp_path, MODES[0]), network.parameters())
    peer = Peer(network.parameters(), lambda p: ADAM(p, lr=0.01))
    for batch in network.batches(3):
        machine.train(batch)
        peer.train(batch)
    for name, tensor in peer.tensors.items():
        theirs = peer.optimizer.state[tensor]
        m, v = machine.state[f"gradient_sum/{name}"], machine.state[f"square_sum/{name}"]
        np.testing.assert_allclose(m * (1 - 0.9), theirs["exp_avg"], rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(v * (1 - 0.999), theirs["exp_avg_sq"], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_lambs_ratio_is_one_where_a_norm_is_zero(tmp_path, scale):
    """Biases start at zero: their first update is Adam's."""
    network = Network(precision="float64", optimizer=nn.Lamb(0.01, weight_decay=0.0))
    first = {name: scale * value for name, value in network.parameters().items()}
    first = {name: 0 * value if "bias" in name else value for name, value in first.items()}
    machine = Machine(network.compile(tmp_path, MODES[0]), first)
    _, gradients = machine.train(network.batches(1)[0])
    for name in (name for name, value in first.items() if not value.any()):
        g = gradients[name]
        np.testing.assert_allclose(machine.state[name], -0.01 * g / (abs(g) + 1e-6), rtol=1e-12)


def test_a_centered_variance_that_rounding_makes_negative_is_zero(tmp_path):
    """Equal gradients: PyTorch takes the root of a number that may be slightly negative."""
    network = Network(optimizer=nn.RMSProp(1e-6, alpha=0.5, centered=True))
    executable = network.compile(tmp_path, MODES[0])
    machine = Machine(executable, network.parameters())
    program = executable.update_program(machine.store, Runtime(seed=0))
    for index in range(60):
        for p in executable.plan.parameters:
            machine.views[f"gradient:{p.name}"][...] = 0.3
        program.update[0](StepState(index=index))
    assert all(np.isfinite(value).all() for value in machine.state.values())


def test_parameters_with_one_optimizer_are_one_range_of_the_program(tmp_path):
    executable = Network(optimizer=nn.Adam(0.01)).compile(tmp_path, MODES[0])
    assert len(re.findall(r"weights_\w+ = v\[", executable.program)) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SGD(0.1, nesterov=True), "SGD: nesterov needs a momentum > 0, got 0.0"),
        (lambda: nn.Adam(0.1, beta2=1.0), r"Adam: betas must be in \[0, 1\), got 1.0"),
        (lambda: nn.Adam(0.1, epsilon=0.0), "epsilon must be > 0"),
        (lambda: nn.AdamW(0.1, weight_decay=-1.0), "AdamW: weight_decay must be >= 0, got -1.0"),
        (
            lambda: nn.AdamW(0.1, exclude_from_weight_decay=("(",)),
            "exclude patterns must be regular expressions",
        ),
        (lambda: nn.Lamb(0.1, beta1=-0.1), r"Lamb: betas must be in \[0, 1\), got -0.1"),
        (lambda: nn.Adagrad(0.1, lr_decay=-1.0), "Adagrad: lr_decay must be >= 0, got -1.0"),
        (lambda: nn.Adagrad(0.1, initial_accumulator=-1.0), "initial_accumulator must be >= 0"),
        (lambda: nn.RMSProp(0.1, alpha=1.0), r"RMSProp: alpha must be in \[0, 1\), got 1.0"),
        (lambda: nn.RMSProp(0.1, momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
    ],
)
def test_an_optimizer_out_of_range_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
