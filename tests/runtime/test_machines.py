"""An Executable on the CPU and as a job: correct by the formula, and with equal bits."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.handmade import SIZES, Data, expected_losses, make
from support.roles import Peers, fed_by

from csrun.base.errors import PeerLost
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.context import Host
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.remote.ring import SlotSender
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.rendezvous import RunFolder
from csrun.runtime.wire.tcp import DamagedTransferError

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
STEPS = 40
SEED = 3
SETTINGS = RunSettings(seed=SEED)
WIRES = ["memory", "tcp"]


def run_all(machine):
    """Losses and outputs of every step in orders of 7, and the final state."""
    losses, outputs, step = [], [], 0
    while True:
        done = machine.run(StepOrder(step, 7))
        results = [machine.result(i, step + i) for i in range(done.done)]
        losses += [r.loss for r in results]
        outputs += [r.outputs["y"] for r in results]
        step += done.done
        if done.finished:
            return losses, outputs, {name: np.array(a) for name, a in machine.state.items()}


def on_cpu(folder: Path, mode: ExecutionMode, data: Data):
    machine = CpuMachine(make(folder, mode), data, SETTINGS, 0)
    initialize(machine.plan, machine.state, SEED)
    initial = {name: a.copy() for name, a in machine.state.items()}
    return initial, run_all(machine)


def folder_of(tmp_path: Path, wire: str) -> tuple[RunFolder, Host | None]:
    """The chief's folder, and the host of the others: the chief's, or a second address."""
    here, there = (Host(f"node{n}", f"127.0.0.{n}") for n in (1, 2))
    is_tcp = wire == "tcp"
    chief = here if is_tcp else None
    return RunFolder(tmp_path / "run", "1", b"secret", host=chief), there if is_tcp else None


def in_job(tmp_path: Path, mode: ExecutionMode, data: Data, streamers: int, wire: str = "memory"):
    folder, host = folder_of(tmp_path, wire)
    peers = Peers(folder, data, streamers, mode, host)
    request = RunRequest(
        make(tmp_path / "exe", mode), SETTINGS, 0, None, fed_by(streamers), ("cs",), 9
    )
    said = []
    with RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, said.append)
        machine.initialize()
        result = run_all(machine)
        machine.close({"loss": 1.5})
    peers.join()
    used = "33.33%" if mode is PIPELINED else "100.00%"
    assert f"(using {used} out of 9 cores on the fabric)" in said[-3]
    assert said[-1] == "Streamers are ready"
    assert peers.errors == {}
    assert peers.results["streamer 0"] == {"loss": 1.5}
    return result


def assert_same_bits(left, right) -> None:
    assert left[0] == right[0]
    for a, b in zip(left[1], right[1], strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    for name in SIZES:
        np.testing.assert_array_equal(left[2][name], right[2][name], strict=True)


def test_cpu_run_matches_the_formula(tmp_path):
    data = Data(STEPS, last_rows=3)
    initial, (losses, outputs, state) = on_cpu(tmp_path / "exe", PIPELINED, data)
    np.testing.assert_allclose(losses, expected_losses(data, initial), rtol=1e-5)
    assert outputs[-1].shape == (3, 2)
    assert not np.array_equal(initial["first/kernel"], state["first/kernel"])


@pytest.mark.parametrize("streamers", [1, 2, 5])
@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("wire", WIRES)
def test_job_equals_cpu_run_bit_for_bit(tmp_path, wire, mode, streamers):
    data = Data(STEPS, last_rows=1)
    _, expected = on_cpu(tmp_path / "cpu", PIPELINED, data)
    assert_same_bits(in_job(tmp_path, mode, data, streamers, wire), expected)


def run_with_a_write(machine):
    """Losses before and after the loop halves a weight; the state at the write."""
    assert machine.has_writable_state
    before = [machine.run(StepOrder(step, 1)) and machine.losses(1)[0] for step in range(20)]
    machine.state["first/kernel"][...] *= np.float32(0.5)
    machine.written()
    state = {name: np.array(a) for name, a in machine.state.items()}
    after = [machine.run(StepOrder(step, 1)) and machine.losses(1)[0] for step in range(20, STEPS)]
    return before, after, state


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_weights_may_be_written_between_orders(tmp_path, mode):
    data = Data(STEPS)
    machine = CpuMachine(make(tmp_path / "cpu", mode), data, SETTINGS, 0)
    initialize(machine.plan, machine.state, SEED)
    expected = run_with_a_write(machine)
    rest = Data(STEPS)
    rest.all = rest.all[20:]
    formula = expected_losses(rest, {name: a.copy() for name, a in expected[2].items()})
    np.testing.assert_allclose(expected[1], formula, rtol=1e-5)
    folder, host = folder_of(tmp_path, "memory")
    peers = Peers(folder, data, 1, mode, host)
    request = RunRequest(make(tmp_path / "exe", mode), SETTINGS, 0, None, fed_by(1), ("cs",), 9)
    with RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, lambda said: None)
        machine.initialize()
        found = run_with_a_write(machine)
        machine.close({"loss": 1.5})
    peers.join()
    assert found[:2] == expected[:2]


def test_streaming_plan_in_one_process_equals_pipelined(tmp_path):
    data = Data(STEPS)
    _, pipelined = on_cpu(tmp_path / "p", PIPELINED, data)
    _, streaming = on_cpu(tmp_path / "s", STREAMING, data)
    assert_same_bits(pipelined, streaming)


def test_a_loss_that_is_no_number_stops_before_the_update(tmp_path):
    data = Data(STEPS)
    data.all[9][1][0, 0] = np.inf
    machine = CpuMachine(make(tmp_path / "exe", STREAMING), data, SETTINGS, 0)
    initialize(machine.plan, machine.state, SEED)
    done = machine.run(StepOrder(0, STEPS))
    assert (done.done, done.bad_loss, done.finished) == (9, np.inf, False)
    assert all(np.isfinite(a).all() for a in machine.state.values())


@pytest.mark.parametrize("wire", WIRES)
def test_a_batch_of_another_shape_ends_the_job_with_peer_lost(tmp_path, wire):
    data = Data(8)
    data.all[5] = (np.zeros((4, 7), "f"), data.all[5][1])
    folder, host = folder_of(tmp_path, wire)
    peers = Peers(folder, data, 2, PIPELINED, host)
    request = RunRequest(
        make(tmp_path / "exe", PIPELINED), SETTINGS, 0, None, fed_by(2), ("cs",), 9
    )
    with pytest.raises(PeerLost, match="streamer 1"), RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, print)
        run_all(machine)
    peers.join()
    message = str(peers.errors["streamer 1"])
    assert re.match(r"batch 5 .*: features must have shape \[4, 3\] .*, got \[4, 7\]", message)


@pytest.mark.parametrize("wire", WIRES)
def test_lost_chief_is_peer_lost_for_all(tmp_path, wire):
    folder, host = folder_of(tmp_path, wire)
    peers = Peers(folder, Data(1000), 2, STREAMING, host)
    request = RunRequest(
        make(tmp_path / "exe", STREAMING), SETTINGS, 0, None, fed_by(2), ("cs",), 9
    )
    with RunPeers(folder) as cluster:
        cluster.start(request, lambda: None, print)
    peers.join()
    assert {type(error) for error in peers.errors.values()} == {PeerLost}
    assert len(peers.errors) == 4


def test_initial_values_depend_on_seed_and_name_alone(tmp_path):
    plan = make(tmp_path / "exe", PIPELINED).plan
    a, b, c = ({n: np.empty(s, "f") for n, s in SIZES.items()} for _ in range(3))
    initialize(plan, a, 1)
    initialize(plan, b, 1)
    initialize(plan, c, 2)
    for name in SIZES:
        np.testing.assert_array_equal(a[name], b[name])
        assert not np.array_equal(a[name], c[name])
        assert np.abs(a[name]).max() <= 0.5
    assert not np.array_equal(a["first/kernel"].flat[:16], a["second/kernel"].flat[:16])


@pytest.mark.parametrize("byte", [0, 100, -1], ids=["its program", "a value", "its checksum"])
def test_an_altered_batch_ends_the_job_with_that_cause(tmp_path, monkeypatch, byte):
    send, sent = SlotSender.send, []

    def altered(link, source, frame):
        sent.append(frame.copy())
        if len(sent) == 7:
            sent[-1][byte] ^= 0x10
        send(link, source, sent[-1])

    monkeypatch.setattr(SlotSender, "send", altered)
    folder, host = folder_of(tmp_path, "tcp")
    peers = Peers(folder, Data(STEPS), 1, PIPELINED, host)
    request = RunRequest(
        make(tmp_path / "exe", PIPELINED), SETTINGS, 0, None, fed_by(1), ("cs",), 9
    )
    damaged = pytest.raises(DamagedTransferError, match="batches from streamer 0 arrived corr")
    with damaged, RunPeers(folder) as cluster:
        run_all(cluster.start(request, lambda: None, print))
    peers.join()
