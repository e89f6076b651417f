"""Mixed precision and loss scaling with several CS systems and MemoryX tasks."""

import numpy as np
import pytest
from support.programs import ArrayData, Network
from support.running import copied
from support.systems import compiled, machine_of

from csrun import nn
from csrun.base.half_formats import FLOAT16
from csrun.runtime.step.scale_rows import scale_tracker
from csrun.runtime.wire.messages import StepOrder

STEPS = 8
OPTIMIZER = nn.AdamW(
    0.01,
    clip_norm=0.5,
    loss_scaling_factor="dynamic",
    initial_loss_scale=2.0**24,
    max_loss_scale=2.0**24,
)
NETWORK = Network(sizes=(12, 40, 30, 5), dropout=0.3, optimizer=OPTIMIZER, storage=FLOAT16)


def trained(folder, systems, micro_batches=1, servers=1, wire="memory"):
    """The state after the steps, and that of the scale."""
    executable = compiled(NETWORK, folder, systems, micro_batches=micro_batches)
    data, first = ArrayData(NETWORK.batches(STEPS)), NETWORK.parameters()
    with machine_of(executable, folder, data, first, wire, servers) as machine:
        tracker = scale_tracker(executable.plan, machine.numbers, None)
        tracker.begin(0)
        assert machine.run(StepOrder(0, STEPS)).done == STEPS
        assert tracker.finish(0, STEPS) is None
        return copied(machine), tracker.state


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_two_systems_add_what_two_micro_batches_do(tmp_path, servers):
    (state, scale), (others, other) = (
        trained(tmp_path / "micro", 1, micro_batches=2),
        trained(tmp_path / "systems", 2, servers=servers),
    )
    assert scale == other
    assert scale.scale < 2.0**24
    for name, value in state.items():
        np.testing.assert_array_equal(others[name], value, name)


@pytest.mark.parametrize(("systems", "servers"), [(1, 1), (1, 2), (2, 2)])
def test_memoryx_on_another_machine_has_the_bits_of_this_one(tmp_path, systems, servers):
    (state, scale), (others, other) = (
        trained(tmp_path / wire, systems, servers=servers, wire=wire) for wire in ("memory", "tcp")
    )
    assert scale == other
    assert scale.scale < 2.0**24
    for name, value in state.items():
        assert others[name].tobytes() == value.tobytes(), name
