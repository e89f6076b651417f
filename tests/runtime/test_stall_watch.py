"""Stalled waits are logged with the awaited task and the time; nothing is aborted."""

import re
import socket
import threading

import numpy as np
import pytest
from support.handmade import Data, make
from support.roles import Peers, fed_by

from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.context import Host
from csrun.executable import Executable, UpdateProgram
from csrun.executable.store_places import TensorPlace
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.remote.store import ChannelPort
from csrun.runtime.step.engine import Engine
from csrun.runtime.store.tensors import StoredTensor
from csrun.runtime.wire import rendezvous, shared
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.rendezvous import RunFolder
from csrun.runtime.wire.tcp import TcpChannel, summed

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
HOSTS = (Host("node1", "127.0.0.1"), Host("node2", "127.0.0.1"))
BATCHES = 6
STARTS = (  # what a busy machine may take long for, too
    "to create its ring",
    "to create its store",
    "to load the program",
    "to initialize the weights",
    "to produce its first batch",
    "Still waiting for",
)


class Hanging(Data):
    """Data whose batch number `at` is made once the event is set."""

    def __init__(self, at: int, event: threading.Event) -> None:
        super().__init__(BATCHES)
        self.at, self.event = at, event

    def deliveries(self, start, stride):
        for index, delivery in enumerate(super().deliveries(start, stride)):
            with self.clock.timed("map load"):
                if start + index * stride == self.at:
                    self.event.wait(30)
            yield delivery


@pytest.fixture
def told_start() -> str:
    """Task start that is tested, or None."""
    return ""


@pytest.fixture
def lines(caplog, told_start):
    """Logged lines about waits, without those about other starts."""

    def found() -> list[str]:
        waits = [text for text in caplog.messages if "wait" in text.lower() and " s" in text]
        others = [start for start in STARTS if start != told_start]
        return [text for text in waits if not any(start in text for start in others)]

    return found


@pytest.fixture
def told() -> list[str]:
    """Lines logged until the event of `hung` is set; a busy machine may log more waits later."""
    return []


@pytest.fixture
def hung(monkeypatch, lines, told):
    """Event that is set after two lines about the wait, or at the end of the test."""
    monkeypatch.setattr(shared, "STALL_S", 0.4)
    event, over = threading.Event(), threading.Event()

    def watch() -> None:
        while len(told) < 2 and not over.wait(0.01):
            told[:] = lines()
        event.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield event
    over.set()
    thread.join()
    assert len(told) >= 2


def run(tmp_path, data, mode=PIPELINED, hosts=(None, None)):
    folder = RunFolder(tmp_path / "run", "1", b"secret", host=hosts[0])
    peers = Peers(folder, data, 2, mode, hosts[1])
    request = RunRequest(
        make(tmp_path / "exe", mode), RunSettings(), 0, None, fed_by(2), ("cs",), 9
    )
    with RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, lambda text: None)
        for array in machine.state.values():
            array[...] = 0
        done = machine.run(StepOrder(0, BATCHES))
        machine.close({})
    peers.join()
    assert done.done == BATCHES


def test_a_batch_that_does_not_come(tmp_path, told, hung):
    run(tmp_path, Hanging(3, hung))
    for line in told:
        said = r"The wafer has waited for a batch of streamer 1 for \d+ s, "
        assert re.fullmatch(said + "in stage 'map load'", line), told


@pytest.mark.parametrize("told_start", ["to produce its first batch"])
def test_a_first_batch_that_does_not_come(tmp_path, told, hung):
    run(tmp_path, Hanging(1, hung))
    for line in told:
        said = r"The chief has waited for streamer 1 to produce its first batch for \d+ s"
        assert re.fullmatch(said, line), told


@pytest.mark.parametrize("told_start", ["Still waiting for"])
def test_a_streamer_whose_input_function_does_not_return(tmp_path, told, hung, monkeypatch):
    real = rendezvous.join

    def join(folder, name):
        if name == "streamer 0":
            hung.wait(30)
        return real(folder, name)

    monkeypatch.setattr(rendezvous, "join", join)
    run(tmp_path, Data(BATCHES))
    for line in told:
        assert line.startswith("Still waiting for streamer 0 after "), line


@pytest.mark.parametrize("hosts", [(None, None), HOSTS], ids=["shared", "separate"])
def test_a_memoryx_that_is_silent(tmp_path, told, hung, monkeypatch, hosts):
    """The wafer, which waits for MemoryX, logs it; the chief, waiting for the wafer, does not."""
    real = Executable.update_program

    def update_program(executable, store, runtime):
        first, second = real(executable, store, runtime).update

        def hanging(step):
            if step.index == 2:
                hung.wait(30)
            first(step)

        return UpdateProgram([hanging, second])

    monkeypatch.setattr(Executable, "update_program", update_program)
    run(tmp_path, Data(BATCHES), STREAMING, hosts)
    for line in told:
        said = r"The wafer has waited for memoryx to update the weights for \d+ s"
        assert re.fullmatch(said, line), told


def test_a_wafer_that_is_silent(tmp_path, told, hung, monkeypatch):
    real = Engine.run

    def hanging(engine, *arguments):
        hung.wait(30)
        return real(engine, *arguments)

    monkeypatch.setattr(Engine, "run", hanging)
    monkeypatch.setattr(shared, "OWN_WORD_S", 0.1)
    run(tmp_path, Data(BATCHES))
    for line in told:
        said = r"The chief has waited for wafer cs to run step 1 for \d+ s"
        assert re.fullmatch(said, line), told


def test_a_memoryx_that_does_not_send_its_weights(told, hung):
    mine, its = socket.socketpair()
    threading.Thread(
        target=lambda: (hung.wait(30), its.sendall(summed(bytes(8)))), daemon=True
    ).start()
    port, place = ChannelPort(TcpChannel(mine, "memoryx")), TensorPlace(0, (2,), "float32")
    tensor = StoredTensor(port, place)
    with mine, its:
        assert np.asarray(tensor).tolist() == [0, 0]
    for line in told:
        assert re.fullmatch(r"The chief has waited for memoryx to send its weights for \d+ s", line)


def test_the_time_between_two_lines_doubles(monkeypatch):
    """After 30 s, 60 s, 120 s, 240 s."""
    now = [1000.0]
    monkeypatch.setattr(shared, "monotonic", lambda: now[0])
    told = []
    stall_watch = shared.StallWatch(told.append)
    for _ in range(250):
        left_s = stall_watch.check()
        assert 0 < left_s <= 240
        now[0] += 1
    assert told == [30.0, 60.0, 120.0, 240.0]
