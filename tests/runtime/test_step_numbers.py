"""Numbers that come with each step, wherever MemoryX has them: as in one process, bit for bit."""

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
from csrun.executable import MOST_STEPS
from csrun.nn.optimizer import TrainOp
from csrun.runtime.step.step_numbers import StepNumbers

BEGIN = MOST_STEPS - 7  # the table begins anew amid the steps
PART, STEPS = 5, 20


class ByNumbers:
    """Adam, whose rate and decay come with each step; tests/compiler has it beside PyTorch's."""

    def minimize(self, loss):
        rate, decay = (StepNumberAttr.of(index) for index in range(2))
        return TrainOp(loss, AdamAttr.of(rate, decoupled=True, weight_decay=decay))


def rows(first: int, scale: float) -> list[tuple[float, float]]:
    """Rate and decay of some steps."""
    steps = range(first, first + PART)
    return [(scale * 1e-3 * (step % 7 + 1), 0.1 * (step % 3)) for step in steps]


def trained(machine, scale=1.0):
    """Losses, and the last state: the numbers are written before each order of steps."""
    numbers, losses = StepNumbers(machine.numbers), []
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
