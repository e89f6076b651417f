"""The shipped model's training, step by step, against PyTorch on the same batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.programs import options_of

from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler import compile_model
from csrun.estimator.model_trace import trace_model
from csrun.executable import Executable, Runtime, StepState, UpdateProgram, view
from csrun.executable.store_places import gradients_offset
from csrun.params import load
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the training")

SEED = 7
MODES = (ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING)
CHECKED_STEPS = (0, 1, 5, 25, 100)
TRAJECTORY_STEPS = 100

Update = Callable[[StepState], None]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Observed(Executable):
    """An Executable that keeps what every update gets to see: each gradient, complete."""

    gradients: Arrays = field(default_factory=dict)

    def update_program(self, store: np.ndarray, runtime: Runtime) -> UpdateProgram:
        updates = super().update_program(store, runtime).update
        return UpdateProgram([self._observing(g, u, store) for g, u in enumerate(updates)])

    def _observing(self, group: int, update: Update, store: np.ndarray) -> Update:
        group_of = {layer.name: layer.group for layer in self.plan.layers}
        place = self.plan.groups[group]
        offset = gradients_offset(self.plan, place) - place.offset_bytes
        views = {
            p.name: view(store, offset + p.offset_bytes, p.shape, p.dtype)
            for p in self.plan.parameters
            if group_of[p.layer] == group
        }

        def observe(step: StepState) -> None:
            self.gradients.update({name: array.copy() for name, array in views.items()})
            update(step)

        return observe


@dataclass(frozen=True)
class Training:
    """Our training of the shipped model, and the batches that it gets."""

    machine: CpuMachine
    gradients: Arrays
    batches: Iterator[Any]
    params: Any

    def step(self, index: int) -> float:
        """Run one step; its loss."""
        done = self.machine.run(StepOrder(index, 1))
        assert done.done == 1
        return self.machine.result(0, index).loss


class Peer:
    """The same network and optimizer in PyTorch."""

    def __init__(self, training: Training) -> None:
        parameters = [p.name for p in training.machine.plan.parameters]
        self.tensors = {name: torch.empty(0, requires_grad=True) for name in parameters}
        self._layers = [name.removesuffix("/kernel") for name in parameters if "/kernel" in name]
        self.take_over(training)
        options = training.params.optimizer
        self.optimizer = torch.optim.SGD(
            self.tensors.values(), lr=options.learning_rate, momentum=options.momentum
        )

    def take_over(self, training: Training) -> None:
        """Our weights."""
        for name, tensor in self.tensors.items():
            tensor.data = torch.from_numpy(training.machine.state[name].copy())

    def take_over_momentum(self, training: Training) -> None:
        """Our momentum."""
        for name, tensor in self.tensors.items():
            buffer = torch.from_numpy(training.machine.state[f"momentum/{name}"].copy())
            self.optimizer.state[tensor]["momentum_buffer"] = buffer

    def step(self, batch: tuple[np.ndarray, np.ndarray]) -> float:
        """Run one step; its loss. Gradients stay in `tensors`."""
        images, labels = batch
        x = torch.from_numpy(images).to(self.tensors[f"{self._layers[0]}/kernel"].dtype).flatten(1)
        for layer in self._layers:
            x = x @ self.tensors[f"{layer}/kernel"] + self.tensors[f"{layer}/bias"]
            x = x if layer == self._layers[-1] else x.relu()
        loss = torch.nn.functional.cross_entropy(x, torch.from_numpy(labels).long())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


Start = Callable[[ExecutionMode, str], Training]


@pytest.fixture
def start(fc_mnist: Path, tmp_path: Path) -> Start:
    """A function that compiles and loads the shipped model as its params file has it."""

    def start_training(mode: ExecutionMode, precision: str) -> Training:
        data, model, schema = _modules()
        params = load(schema.Params, fc_mnist / "configs" / "params.yaml")
        dataset = data.train_input_fn(params)
        traced = trace_model(model.model_fn, dataset, RunMode.TRAIN, params, precision)
        made = compile_model(traced.module, tmp_path, options_of(mode)).executable
        executable = Observed(made.directory, made.plan, made.program, made.digest)
        machine = CpuMachine(executable, dataset, RunSettings(seed=SEED), 0)
        initialize(machine.plan, machine.state, SEED)
        return Training(machine, executable.gradients, iter(dataset.batches()), params)

    return start_training


def _modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    import data
    import model
    import params

    return data, model, params


def distance(ours: np.ndarray, theirs: Any) -> float:
    """The largest difference, relative to the tensor's largest value."""
    expected = theirs.detach().numpy()
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("mode", MODES)
def test_single_steps_of_a_training_are_pytorchs(start: Start, mode: ExecutionMode) -> None:
    training = start(mode, "float32")
    peer = Peer(training)
    for index in range(max(CHECKED_STEPS) + 1):
        batch = next(training.batches)
        if index not in CHECKED_STEPS:
            training.step(index)
            continue
        peer.take_over(training)
        peer.take_over_momentum(training)
        assert training.step(index) == pytest.approx(peer.step(batch), rel=1e-5), index
        assert training.gradients.keys() == peer.tensors.keys()
        for name, tensor in peer.tensors.items():
            momentum = peer.optimizer.state[tensor]["momentum_buffer"]
            assert distance(training.gradients[name], tensor.grad) < 1e-5, (index, name)
            assert distance(training.machine.state[name], tensor) < 1e-5, (index, name)
            assert distance(training.machine.state[f"momentum/{name}"], momentum) < 1e-5


@pytest.mark.parametrize("mode", MODES)
def test_a_trajectory_in_float64_is_pytorchs(start: Start, mode: ExecutionMode) -> None:
    training = start(mode, "float64")
    peer = Peer(training)
    for index in range(TRAJECTORY_STEPS):
        ours, theirs = training.step(index), peer.step(next(training.batches))
        assert ours == pytest.approx(theirs, rel=1e-9), index
    for name, tensor in peer.tensors.items():
        assert distance(training.machine.state[name], tensor) < 1e-9, name
