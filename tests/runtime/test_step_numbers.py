"""Numbers passed with each step: bits of one process, for any place of MemoryX."""

import pytest
from support.programs import Network
from support.running import (
    PIPELINED,
    STREAMING,
    WAYS,
    assert_same,
    begun,
    copied,
    data,
    losses_of,
    opened,
)

from csrun.cirh.algorithms import AdamAttr, StepNumberAttr
from csrun.cirh.ops.learning import Clipping
from csrun.executable import MOST_STEPS
from csrun.nn.optimizer import TrainOp
from csrun.runtime.step.step_numbers import StepNumbers

BEGIN = MOST_STEPS - 7  # the table begins anew amid the steps
PART, STEPS = 5, 20


class ByNumbers:
    """Adam with rate and decay passed to each step."""

    def __init__(self, clip_norm=None):
        self._clip_norm = clip_norm

    def minimize(self, loss):
        rate, decay = (StepNumberAttr.of(index) for index in range(2))
        algorithm = AdamAttr.of(rate, decoupled=True, weight_decay=decay)
        return TrainOp(loss, algorithm, Clipping(self._clip_norm))


def rows(first: int, scale: float) -> list[tuple[float, float]]:
    """Rate and decay of some steps."""
    steps = range(first, first + PART)
    return [(scale * 1e-3 * (step % 7 + 1), 0.1 * (step % 3)) for step in steps]


def trained(machine, scale=1.0):
    """Losses, and the last state; numbers are written before each order of steps."""
    numbers, losses = StepNumbers(machine.numbers, machine.plan.store.numbers), []
    for first in range(BEGIN, BEGIN + STEPS, PART):
        numbers.put(first, rows(first, scale))
        losses += losses_of(machine, first, PART)
    return losses, copied(machine)


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("way", WAYS)
def test_a_steps_numbers_are_those_that_were_written_before_it(tmp_path, way, mode):
    network = Network(optimizer=ByNumbers())
    train = network.compile(tmp_path, mode, 1)
    state = network.parameters()
    alone = begun(train, data(network), state)
    losses, expected = trained(alone)
    assert trained(begun(train, data(network), state), 2.0)[0] != losses
    begin = {"start": BEGIN, "batch": 0}
    with opened(way, tmp_path, train, [data(network)], state, **begin) as machine:
        found, last = trained(machine)
    assert found == losses
    assert_same(last, expected)


def norms_of(machine):
    """Norms of the gradients of all steps, read after each order."""
    numbers, norms = StepNumbers(machine.numbers, machine.plan.store.numbers), []
    for first in range(BEGIN, BEGIN + STEPS, PART):
        numbers.put(first, rows(first, 1.0))
        losses_of(machine, first, PART)
        norms += numbers.norms(first, PART)
    return norms


def first_norm(network):
    """Norm of the first step in PyTorch."""
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle of clipping")
    tensors = {n: torch.from_numpy(v).requires_grad_() for n, v in network.parameters().items()}
    x, labels = network.batches(1)[0]
    hidden, layers = torch.from_numpy(x).flatten(1), ("dense", "dense_1", "dense_2")
    for layer in layers:
        hidden = hidden @ tensors[f"{layer}/kernel"] + tensors[f"{layer}/bias"]
        hidden = hidden.relu() if layer != layers[-1] else hidden
    torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels).long()).backward()
    return torch.nn.utils.clip_grad_norm_(tensors.values(), 0.6).item()


PLACES = [
    ("memory 1", PIPELINED, 1),
    *[(way, STREAMING, servers) for way in ("memory 1", "tcp 1") for servers in (1, 2)],
]


@pytest.mark.parametrize(("way", "mode", "servers"), PLACES)
def test_the_norm_of_clipped_gradients_comes_back(tmp_path, way, mode, servers):
    network = Network(optimizer=ByNumbers(0.6))
    train, state = network.compile(tmp_path, mode, 1), network.parameters()
    expected = norms_of(begun(train, data(network), state))
    assert expected[0] == pytest.approx(first_norm(network), rel=1e-5)
    assert len(set(expected)) == STEPS
    begin = {"start": BEGIN, "batch": 0, "servers": servers}
    with opened(way, tmp_path, train, [data(network)], state, **begin) as machine:
        assert norms_of(machine) == expected
