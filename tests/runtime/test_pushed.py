"""Pushed batches: the bits of a data set's batches, in a process and in a job."""

import numpy as np
import pytest
from msgspec.structs import replace
from support.programs import ArrayData
from support.roles import Peers, fed_by
from support.running import NETWORK, PIPELINED, SETTINGS, STREAMING, compiled, copied

from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.context import Host
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.machine import Feed
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.rendezvous import RunFolder, memoryx_names

STEPS = 30  # more than a ring has slots


class NoData:
    """A data set that is never read."""

    replayed = False


def steps_of(machine, evaluation, batches):
    """Losses of all steps, with an evaluation of each tenth batch by another program."""
    other = machine.load(evaluation, Feed(NoData(), is_pushed=True))
    losses = []
    for step, batch in enumerate(batches):
        if step % 10 == 0:
            other.push(batch)
            assert other.run(StepOrder(step, 1)).done == 1
        machine.push(batch)
        assert machine.run(StepOrder(step, 1)).done == 1
        losses.append(machine.result(0, step).loss)
    machine.unload(other)
    return losses


def expected_of(machine, batches):
    """Losses and state with a data set's batches."""
    machine.initialize()
    done = machine.run(StepOrder(0, len(batches)))
    return [machine.result(i, i).loss for i in range(done.done)], copied(machine)


def in_a_job(tmp_path, mode, wire, train, evaluate, batches):
    hosts = [Host(f"node{n}", f"127.0.0.{n}") for n in (1, 2)]
    here, there = hosts if wire == "tcp" else (None, None)
    folder = RunFolder(tmp_path / "run", "1", b"secret", host=here)
    peers = Peers(folder, [NoData()], 2, mode, there)
    names = memoryx_names(1)
    request = RunRequest(
        train, SETTINGS, 0, None, fed_by(2), ("cs",), 9, memoryx=names, is_pushed=True
    )
    with RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, lambda text: None)
        machine.initialize()
        found = steps_of(machine, evaluate, batches), copied(machine)
        machine.close({})
    peers.join()
    assert peers.errors == {}
    return found


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("wire", ["in process", "memory", "tcp"])
def test_steps_are_those_of_the_same_batches_from_a_data_set(tmp_path, mode, wire):
    made = compiled(NETWORK, tmp_path / "exe", mode)
    batches = NETWORK.batches(STEPS)
    evaluation = NETWORK.compile(tmp_path / "exe", mode, 1, RunMode.EVAL)
    train = made.train
    if wire == "in process":
        machine = CpuMachine(train, NoData(), SETTINGS, 0, is_pushed=True)
        machine.initialize()
        losses, state = steps_of(machine, evaluation, batches), copied(machine)
    else:
        losses, state = in_a_job(tmp_path, mode, wire, train, evaluation, batches)
    expected, after = expected_of(CpuMachine(train, ArrayData(batches), SETTINGS, 0), batches)
    assert losses == expected
    for name, array in after.items():
        np.testing.assert_array_equal(state[name], array, strict=True)


def test_a_label_out_of_range_is_refused_with_its_step(tmp_path):
    train = compiled(NETWORK, tmp_path, PIPELINED).train
    machine = CpuMachine(train, NoData(), SETTINGS, 0, is_pushed=True)
    first, (x, labels) = NETWORK.batches(2)
    machine.push(first)
    wrong = labels.copy()
    wrong[3] = 99
    with pytest.raises(CsrunError, match=r"^row 3: \w+ must be in 0..4, got 99"):
        machine.push((x, wrong))


def test_an_array_of_another_shape_is_refused(tmp_path):
    train = compiled(NETWORK, tmp_path, PIPELINED).train
    machine = CpuMachine(train, NoData(), SETTINGS, 0, is_pushed=True)
    x, labels = NETWORK.batches(1)[0]
    with pytest.raises(ValueError, match="got shape"):
        machine.push((x[:1], labels))


def test_numbers_are_checked_where_a_run_asks_for_it(tmp_path):
    settings = replace(SETTINGS, check_numerics=True)
    train = compiled(NETWORK, tmp_path, PIPELINED).train
    machine = CpuMachine(train, NoData(), settings, 0, is_pushed=True)
    x, labels = NETWORK.batches(1)[0]
    x = x.copy()
    x[0, 0] = np.inf
    with pytest.raises(CsrunError, match="is not finite"):
        machine.push((x, labels))
