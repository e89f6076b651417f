"""Learning rates and weight decays that are inputs of each step, against torch.optim."""

from dataclasses import dataclass

import numpy as np
import pytest
from support.programs import Machine, Network

from csrun.base.mode import ExecutionMode
from csrun.cirh.algorithms import (
    AdagradAttr,
    AdamAttr,
    Algorithm,
    LambAttr,
    RmsPropAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.executable import MOST_STEPS, StepNumber, numbers_view
from csrun.nn.optimizer import TrainOp
from csrun.runtime.step.step_numbers import StepNumbers

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the optimizers")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

RATE, DECAY = StepNumberAttr.of(0), StepNumberAttr.of(1)
OPTIM = torch.optim
CASES = {
    "sgd": (SgdAttr.of(RATE, 0.8, weight_decay=DECAY), lambda p: OPTIM.SGD(p, momentum=0.8)),
    "adam": (AdamAttr.of(RATE, weight_decay=DECAY), OPTIM.Adam),
    "adamw": (AdamAttr.of(RATE, decoupled=True, weight_decay=DECAY), OPTIM.AdamW),
    "adagrad": (AdagradAttr.of(RATE, weight_decay=DECAY), OPTIM.Adagrad),
    "rmsprop": (RmsPropAttr.of(RATE, weight_decay=DECAY), OPTIM.RMSprop),
}


@dataclass(frozen=True)
class ByAlgorithm:
    """Optimizer that minimizes a loss with an algorithm of CIRH."""

    algorithm: Algorithm

    def minimize(self, loss):
        return TrainOp(loss, self.algorithm)


def compiled(tmp_path, algorithm):
    network = Network(precision="float64", optimizer=ByAlgorithm(algorithm))
    return network, network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 300)


def numbers_of(step: int) -> tuple[float, float]:
    """Warm-up of the rate, and weight decays of zero, nearly zero and much."""
    return 0.02 * (step + 1) / 30, (0.0, 1e-14, 0.1)[step % 3]


@pytest.mark.parametrize("name", CASES)
def test_a_steps_own_rate_and_decay_are_pytorchs(tmp_path, name):
    algorithm, make = CASES[name]
    network, executable = compiled(tmp_path, algorithm)
    assert executable.plan.learning_rate == StepNumber(0)
    machine = Machine(executable, network.parameters())
    numbers = StepNumbers(
        numbers_view(executable.plan, machine.store), executable.plan.store.numbers
    )
    machine.step_count = MOST_STEPS - 10  # the table begins anew amid the steps
    first = machine.step_count
    tensors = {n: torch.from_numpy(v.copy()) for n, v in network.parameters().items()}
    optimizer = make(list(tensors.values()))
    for tensor in tensors.values():  # PyTorch's own count of steps, for Adam's correction
        state = optimizer.state[tensor]
        if name.startswith("adam"):
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(tensor) for _ in "mv")
            state["step"] = torch.tensor(float(first))
    numbers.put(first, [numbers_of(step) for step in range(20)])
    for step, batch in enumerate(network.batches(20)):
        _, gradients = machine.train(batch)
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(gradients[n])
        optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"] = numbers_of(
            step
        )
        optimizer.step()
        for n, tensor in tensors.items():
            np.testing.assert_allclose(machine.state[n], tensor.numpy(), rtol=1e-9, atol=1e-10)
        assert numbers.of(first + step, 0) == numbers_of(step)[0]


def test_numbers_lie_behind_the_state_and_are_no_part_of_it(tmp_path):
    _, executable = compiled(tmp_path, LambAttr.of(RATE))
    store = executable.plan.store
    assert store.numbers == 1
    assert store.nbytes - store.numbers_offset == MOST_STEPS * 2 * 8  # and the norm
    machine = Machine(executable, {})
    assert sum(array.nbytes for array in machine.state.values()) <= store.numbers_offset
