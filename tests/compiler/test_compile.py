"""Compiled programs against PyTorch, and against each other with another memory layout."""

import numpy as np
import pytest
from support.programs import Machine, Network

from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.loss import IGNORE_INDEX

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the training")

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
MODES = (PIPELINED, STREAMING)
SMALL_GROUPS = 300  # bytes: a group a layer


class Peer:
    """The same network in PyTorch."""

    def __init__(self, network: Network, parameters: dict) -> None:
        self.tensors = {
            name: torch.from_numpy(value.copy()).requires_grad_()
            for name, value in parameters.items()
        }
        self._optimizer = torch.optim.SGD(
            self.tensors.values(), lr=network.learning_rate, momentum=network.momentum
        )

    def logits(self, features: np.ndarray):
        """Forward pass."""
        x = torch.from_numpy(features).flatten(1)
        layers = [name.removesuffix("/kernel") for name in self.tensors if "kernel" in name]
        for layer in layers:
            x = x @ self.tensors[f"{layer}/kernel"] + self.tensors[f"{layer}/bias"]
            x = x.relu() if layer != layers[-1] else x
        return x

    def loss(self, batch):
        """Mean loss over the valid rows."""
        labels = torch.from_numpy(batch[1]).long()
        return torch.nn.functional.cross_entropy(
            self.logits(batch[0]), labels, ignore_index=IGNORE_INDEX
        )

    def train(self, batch) -> tuple[float, dict[str, np.ndarray]]:
        """Train a step; return the loss and each gradient."""
        self._optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        gradients = {name: t.grad.numpy().copy() for name, t in self.tensors.items()}
        self._optimizer.step()
        return loss.item(), gradients

    def take_over(self, machine: Machine) -> None:
        """Copy the machine's weights and momentum, so that the next step starts from them."""
        for name, tensor in self.tensors.items():
            tensor.data.copy_(torch.from_numpy(machine.state[name]))
            slot = machine.state.get(f"momentum/{name}")
            if slot is not None:
                momentum = torch.from_numpy(slot.copy())
                self._optimizer.state[tensor]["momentum_buffer"] = momentum


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, relative to the tensor's largest value."""
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def check_step(machine: Machine, peer: Peer, batch, tolerance: float) -> None:
    loss, gradients = machine.train(batch)
    their_loss, their_gradients = peer.train(batch)
    assert loss == pytest.approx(their_loss, rel=tolerance)
    assert gradients.keys() == their_gradients.keys()
    for name, theirs in their_gradients.items():
        assert distance(gradients[name], theirs) < tolerance, name
        weights = peer.tensors[name].detach().numpy()
        assert distance(machine.state[name], weights) < tolerance, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [None, 11, 1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_of_a_training_are_pytorchs(tmp_path, mode, rows, momentum):
    network = Network(momentum=momentum)
    machine = Machine(network.compile(tmp_path, mode, SMALL_GROUPS), network.parameters())
    peer = Peer(network, network.parameters())
    for batch in network.batches(8, rows):
        peer.take_over(machine)
        check_step(machine, peer, batch, 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_the_shipped_networks_steps_are_pytorchs(tmp_path, mode):
    network = Network(sizes=(784, *[50] * 10, 10), batch=128, learning_rate=0.01)
    machine = Machine(network.compile(tmp_path, mode, 50_000), network.parameters())
    peer = Peer(network, network.parameters())
    for batch in network.batches(3):
        peer.take_over(machine)
        check_step(machine, peer, batch, 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_trajectory_in_float64_is_pytorchs(tmp_path, mode):
    network = Network(precision="float64")
    machine = Machine(network.compile(tmp_path, mode, SMALL_GROUPS), network.parameters())
    peer = Peer(network, network.parameters())
    for batch in network.batches(100):
        check_step(machine, peer, batch, 1e-9)


def test_modes_and_groups_train_bit_for_bit_alike(tmp_path):
    network = Network(sizes=(40, 30, 20, 30, 10), batch=32)
    machines = [
        Machine(network.compile(tmp_path, mode, group_bytes), network.parameters())
        for mode in MODES
        for group_bytes in (1 << 20, 1)
    ]
    assert [len(m.plan.groups) for m in machines] == [1, 4, 2, 4]
    for batch in network.batches(20):
        losses = [machine.train(batch)[0] for machine in machines]
        assert len(set(losses)) == 1
    for name, value in machines[0].state.items():
        assert all(np.array_equal(value, m.state[name]) for m in machines[1:]), name


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_gives_the_loss_and_the_outputs(tmp_path, mode):
    network = Network()
    executable = network.compile(tmp_path, mode, SMALL_GROUPS, RunMode.EVAL)
    machine, peer = Machine(executable, network.parameters()), Peer(network, network.parameters())
    (batch,) = network.batches(1, rows=10)
    assert machine.evaluate(batch) == pytest.approx(peer.loss(batch).item(), rel=1e-5)
    theirs = peer.logits(batch[0]).detach().numpy()
    assert distance(machine.output("logits"), theirs) < 1e-5
    np.testing.assert_array_equal(machine.output("prediction"), theirs.argmax(1))
    np.testing.assert_array_equal(machine.output("labels"), batch[1])
    assert executable.plan.store.gradients_offset is None


@pytest.mark.parametrize("scale", [1e4, 1e-4])
def test_the_loss_is_stable_for_logits_of_any_size(tmp_path, scale):
    network = Network()
    parameters = {name: value * np.float32(scale) for name, value in network.parameters().items()}
    machine = Machine(network.compile(tmp_path, PIPELINED), parameters)
    (batch,) = network.batches(1)
    loss = Peer(network, parameters).loss(batch).item()
    assert machine.evaluate(batch) == pytest.approx(loss, rel=1e-5)
