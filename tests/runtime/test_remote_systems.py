"""Several CS systems with remote MemoryX and SwarmX: the bits of one machine."""

import threading
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from support.programs import ArrayData, Network, TiedNetwork
from support.running import SETTINGS, assert_same, copied, losses_of
from support.systems import compiled, machine_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.runtime.chief.machine import Feed
from csrun.runtime.remote.store import StoreLink
from csrun.runtime.step.trace import SpanKind
from csrun.runtime.wire.messages import StepOrder

NETWORK = Network((12, 40, 30, 5), batch=24, dropout=0.3, optimizer=nn.AdamW(0.01))
TIED = TiedNetwork(
    (30, 12, 12, 12, 30), batch=24, dropout=0.2, optimizer=nn.Adam(0.01, clip_norm=0.5)
)
CLIPPED = replace(NETWORK, optimizer=nn.AdamW(0.01, clip_norm=0.1))
STEPS = 6


def trained(network, folder, systems, wire, servers=1, micro_batches=1):
    """Losses and weights, with an evaluation in between."""
    executable = compiled(network, folder, systems, micro_batches=micro_batches)
    evaluation = compiled(network, folder / "evaluation", systems, RunMode.EVAL)
    batches = network.batches(STEPS + 3)
    data, others = ArrayData(batches[:STEPS]), ArrayData(batches[STEPS:])
    first, ways = network.parameters(), {"wire": wire, "servers": servers}
    with machine_of(executable, folder, [data, others], first, **ways) as machine:
        evaluate = machine.load(evaluation, Feed(others, 1))
        losses = losses_of(machine, 0, STEPS // 2)
        losses += losses_of(evaluate, 0, 4)
        losses += losses_of(machine, STEPS // 2, STEPS)
        return losses, copied(machine)


CASES = [
    (NETWORK, 2, 1, 1),
    (TIED, 4, 1, 1),
    (NETWORK, 6, 1, 1),
    (TIED, 6, 1, 2),
    (CLIPPED, 6, 2, 1),
]


@pytest.mark.parametrize(("network", "systems", "servers", "micro_batches"), CASES)
def test_the_bits_of_one_machine(tmp_path, network, systems, servers, micro_batches):
    """Six systems have two levels of SwarmX; one machine has a single MemoryX task."""
    losses, state = trained(network, tmp_path / "1", systems, "memory", 1, micro_batches)
    found = trained(network, tmp_path / "tcp", systems, "tcp", servers, micro_batches)
    assert len(losses) == STEPS + 3
    assert found[0] == losses
    assert_same(state, found[1])


ORDERS = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 5, 0, 4, 1, 2]]


@pytest.mark.parametrize("order", ORDERS, ids=["first to last", "last to first", "mixed"])
def test_the_order_of_arrival_decides_nothing(tmp_path, monkeypatch, order):
    """A wafer sends a group's gradients after the wafer before it in `order`."""
    losses, state = trained(TIED, tmp_path / "1", 6, "memory")
    left, changed = {}, threading.Condition()
    before = {f"wafer cs{b}": f"wafer cs{a}" for a, b in pairwise(order)}
    send_gradients = StoreLink.send_gradients

    def in_turn(link, group, step, gradients, sent):
        name = threading.current_thread().name
        number = left.get(name, 0)
        with changed:
            first = before.get(name)
            assert first is None or changed.wait_for(lambda: left.get(first, 0) > number, 120)
        send_gradients(link, group, step, gradients, sent)
        with changed:
            left[name] = number + 1
            changed.notify_all()

    monkeypatch.setattr(StoreLink, "send_gradients", in_turn)
    found = trained(TIED, tmp_path / "tcp", 6, "tcp")
    assert min(left.values()) >= STEPS
    assert found[0] == losses
    assert_same(state, found[1])


@pytest.mark.parametrize(("part", "micro_batches"), [(0, 1), (4, 1), (5, 2)])
def test_a_part_of_the_loss_that_is_no_number_stops_all_before_the_update(
    tmp_path, part, micro_batches
):
    """In the third step, for one of six parts of the batch."""
    network = replace(CLIPPED, dropout=0.0)
    batches = network.batches(4)
    batches[2][0][4 * part] = np.inf
    executable = compiled(network, tmp_path, 6, micro_batches=micro_batches)
    first, data, states = network.parameters(), [ArrayData(batches)], []
    for steps in (2, 4):
        with machine_of(
            executable, tmp_path / f"{steps}", data, first, "tcp", servers=2
        ) as machine:
            done = machine.run(StepOrder(0, steps))
            assert done.done == 2
            states.append(copied(machine))
    assert done.bad_loss is not None
    assert not np.isfinite(done.bad_loss)
    assert_same(*states)


def test_each_task_traces_its_sums(tmp_path):
    """On two levels, in two of the steps."""
    executable = compiled(NETWORK, tmp_path, 6)
    settings = msgspec.structs.replace(SETTINGS, trace_steps=(2, 3))
    data, first = [ArrayData(NETWORK.batches(4))], NETWORK.parameters()
    with machine_of(executable, tmp_path, data, first, "tcp", settings=settings) as machine:
        machine.run(StepOrder(0, 4))
        traced = dict(machine.traced())
    for name in ("swarmx 2", "swarmx 3"):
        assert traced[name][:, 0].tolist() == [SpanKind.GRADIENTS] * 2 * len(executable.plan.groups)
        assert traced[name][:, 2].tolist() == 2 * list(executable.plan.deliveries)
