"""Pipelined, streaming and CPU runs: equal bits of losses and weights, with dropout."""

from dataclasses import replace

import numpy as np
import pytest
from support.programs import ArrayData, Network, TiedNetwork
from support.roles import Peers, fed_by

from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.step import weights
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.rendezvous import RunFolder

NETWORK = Network(sizes=(12, 40, 30, 5), dropout=0.3)
STEPS, SETTINGS = 30, RunSettings(seed=9)
PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING


def data(network=NETWORK):
    """Finite seeded batches, the last one incomplete."""
    batches = network.batches(STEPS)
    return ArrayData([*batches[:-1], tuple(array[:5] for array in batches[-1])])


def run(machine, network=NETWORK):
    """All losses, and the state at the end."""
    for name, array in machine.state.items():
        array[...] = network.parameters().get(name, 0)
    done = machine.run(StepOrder(0, STEPS))
    assert done.done == STEPS
    losses = [machine.result(i, i).loss for i in range(STEPS)]
    return losses, {name: array.copy() for name, array in machine.state.items()}


def in_job(tmp_path, executable, network, streamers):
    mode = executable.plan.mode
    folder = RunFolder(tmp_path / "run", "1", b"secret")
    peers = Peers(folder, data(network), streamers, mode)
    request = RunRequest(executable, SETTINGS, 0, None, fed_by(streamers), ("cs",), 9)
    with RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, lambda text: None)
        results = run(machine, network)
        machine.close({})
    peers.join()
    return results


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 30])
@pytest.mark.parametrize("group_bytes", [1, 4000, 1 << 20])
def test_all_ways_give_the_same_bits(tmp_path, monkeypatch, group_bytes, prefetch_bytes):
    """One, two and four groups; with four every slot is reused."""
    monkeypatch.setattr(weights, "PREFETCH_BYTES", prefetch_bytes)
    check_all_ways(tmp_path, NETWORK, group_bytes)


@pytest.mark.parametrize(
    "optimizer", [nn.AdamW(0.01, clip_norm=0.5), nn.Lamb(0.01), nn.RMSProp(0.01, centered=True)]
)
def test_all_ways_update_to_the_same_bits(tmp_path, optimizer):
    network = replace(NETWORK, optimizer=optimizer)
    check_all_ways(tmp_path, network, group_bytes=1)


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_all_ways_train_a_tied_weight_to_the_same_bits(
    tmp_path, monkeypatch, group_bytes, clip_norm
):
    """Its group is first, in the middle and last, prefetched if its slot is free."""
    monkeypatch.setattr(weights, "PREFETCH_BYTES", 0)
    optimizer = nn.Adam(0.01, clip_norm=clip_norm)
    network = TiedNetwork((30, 12, 12, 12, 12, 30), dropout=0.2, optimizer=optimizer)
    check_all_ways(tmp_path, network, group_bytes)


def test_all_ways_train_matrices_in_parts_to_the_same_bits(tmp_path, monkeypatch):
    """The table's shards are first, in the middle and last, each a group; clipped by one norm."""
    monkeypatch.setattr(weights, "PREFETCH_BYTES", 0)
    optimizer = nn.Adam(0.01, clip_norm=0.5)
    network = TiedNetwork((30, 12, 12, 12, 30), dropout=0.2, optimizer=optimizer)
    check_all_ways(tmp_path, network, group_bytes=1, max_group_bytes=400)


def check_all_ways(tmp_path, network, group_bytes, max_group_bytes=None):
    cut = {"max_group_bytes": max_group_bytes}
    whole, pipelined, streaming = (
        network.compile(tmp_path, mode, nbytes, **cut)
        for mode, nbytes in (
            (PIPELINED, 1 << 20),
            (PIPELINED, group_bytes),
            (STREAMING, group_bytes),
        )
    )
    expected = run(CpuMachine(whole, data(network), SETTINGS, 0), network)
    assert len(set(expected[0])) == STEPS
    ways = {
        "streaming in one process": run(CpuMachine(streaming, data(network), SETTINGS, 0), network),
        "pipelined job": in_job(tmp_path / "p", pipelined, network, 2),
        "streaming job": in_job(tmp_path / "s", streaming, network, 3),
    }
    for way, (losses, state) in ways.items():
        assert losses == expected[0], way
        for name, array in expected[1].items():
            np.testing.assert_array_equal(state[name], array, err_msg=f"{way}: {name}")
