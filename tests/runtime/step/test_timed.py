"""Waiting times of steps by a fake clock: for weights, and for updates blocked by a checkpoint."""

import threading
from itertools import count
from types import SimpleNamespace

import pytest
from support.running import NETWORK, PIPELINED, SETTINGS, STREAMING, data, fill, opened

from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.remote import weights as weights_afar
from csrun.runtime.remote.weights import RemoteMemoryxLink
from csrun.runtime.step import timed, update_gate
from csrun.runtime.step.trace import SpanRecorder
from csrun.runtime.store import store_mailbox
from csrun.runtime.store.store_mailbox import MemoryxLink
from csrun.runtime.wire.messages import StepOrder


class Clock:
    """Fake clock in seconds, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        for module in (update_gate, timed, store_mailbox, weights_afar):
            monkeypatch.setattr(module, "awake_s", lambda: self.now_s)

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    "recorder", [SpanRecorder(None), SpanRecorder((1, 9))], ids=["plain", "traced"]
)
def test_what_a_checkpoint_holds_back_is_not_the_weights(
    clock: Clock, recorder: SpanRecorder
) -> None:
    weights = SimpleNamespace(held_s=1.0)

    def waits(seconds: float, of_them_held: float) -> None:
        clock.passes(seconds)
        weights.held_s += of_them_held

    weights.enter = lambda visit: waits(3.0, 2.0) if visit else waits(5.0, 0.5)
    weights.settle = lambda: waits(0.25, 0.25)
    watched = timed.timed(weights, recorder, is_resident=False)
    watched.read()  # what was before
    recorder.at(0)
    watched.begin()
    watched.enter(0)
    watched.enter(1)
    watched.wait(lambda: waits(7.0, 0.0))
    watched.settle()
    assert watched.read() == (1.0 + 7.0, 4.5, 2.75)
    assert watched.read() == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("held_s", "counted_s"), [(2.0, 2.0), (5.0, 3.0), (0.0, 0.0)])
def test_memoryx_reports_blocked_time(clock: Clock, held_s: float, counted_s: float) -> None:
    """Of a wait of three seconds; blocked time before the wait does not count."""
    told = SimpleNamespace(steps={}, held=[4.0])

    def take() -> None:
        clock.passes(3.0)
        told.held[0] += held_s

    counters = SimpleNamespace(ready=lambda: 0, take=take, raise_by=lambda: None)
    end = MemoryxLink(counters, counters, told)
    end.deliver(7, 0)
    assert end.take() == (7, counted_s)
    counters.ready = lambda: 1  # done before it is waited for
    end.deliver(8, 0)
    assert end.take() == (8, 0.0)


def test_a_remote_memoryx_reports_with_its_next_answer(clock: Clock) -> None:
    """Gradients are blocked for three seconds, and weights arrive in one more; then the reverse.

    Blocked time while the wafer computes does not count.
    """
    link = SimpleNamespace(held_s=0.0, check=lambda: None)

    def counter(seconds: float) -> SimpleNamespace:
        return SimpleNamespace(take=lambda: clock.passes(seconds))

    end = RemoteMemoryxLink(link, counter(1.0), counter(3.0))
    end.coming.extend([7, 8, None])
    end.sending.append(5)
    end.take_sent()
    link.held_s = 3.5
    assert end.take() == (7, 3.5)
    clock.passes(9.0)
    link.held_s = 8.0
    assert end.take() == (8, 1.0)
    assert end.take() == (None, 0.0)


@pytest.mark.parametrize(("waits", "is_told"), [(1, 0), (0, 1)])
def test_late_reports_never_make_a_time_negative(clock: Clock, waits: int, is_told: int) -> None:
    """Two of three seconds at one visit were blocked, as the next visit learns."""
    weights = SimpleNamespace(held_s=0.0)

    def enter(visit: int) -> None:
        if visit == waits:
            clock.passes(3.0)
        else:
            weights.held_s = 2.0

    weights.enter = enter
    watched = timed.TimedWeights(weights, SpanRecorder(None))
    watched.enter(waits)
    watched.enter(is_told)
    assert watched.read() == ((1.0, 0.0, 2.0) if waits else (0.0, 1.0, 2.0))


@pytest.mark.parametrize("way", ["memory 1", "tcp 1"])
def test_a_wafer_reports_blocked_time_of_memoryx_over_both_wires(
    tmp_path, monkeypatch: pytest.MonkeyPatch, clock: Clock, way: str
) -> None:
    """The first tensor takes three seconds to copy; the wafer waits for far longer."""
    waits, ticks, hold = threading.Event(), count(step=1000), update_gate.UpdateGate.hold

    def wafers_s() -> float:
        waits.set()
        return float(next(ticks))

    def slowly(gate: update_gate.UpdateGate, take) -> int:
        def taken() -> None:
            take()
            if not clock.now_s:
                assert waits.wait(120)
                clock.passes(3.0)

        return hold(gate, taken)

    monkeypatch.setattr(timed, "awake_s", lambda: float(next(ticks)))
    for module in (store_mailbox, weights_afar):
        monkeypatch.setattr(module, "awake_s", wafers_s)
    monkeypatch.setattr(update_gate.UpdateGate, "hold", slowly)
    executable = NETWORK.compile(tmp_path / "exe", STREAMING, 1)
    with opened(way, tmp_path, executable, [data(NETWORK)], NETWORK.parameters()) as machine:
        assert machine.run(StepOrder(0, 1)).checkpoint_s == 0.0
        held = machine.pause_updates()
        waits.clear()
        ordered = machine.order(StepOrder(1, 1))
        for name in held.order:
            held.copied(1)
            if held.sent is not None:
                list(held.sent[name].make())
        held.end()
        assert ordered.finish().checkpoint_s == 3.0
        assert machine.run(StepOrder(2, 1)).checkpoint_s == 0.0


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_updates_blocked_by_copies_count_for_the_checkpoint(tmp_path, clock: Clock, mode) -> None:
    """Each tensor takes a second to copy, and all else no time."""
    machine = CpuMachine(NETWORK.compile(tmp_path, mode, 1), data(NETWORK), SETTINGS, 0)
    fill(machine, NETWORK.parameters())
    assert machine.run(StepOrder(0, 1)).checkpoint_s == 0.0
    machine._memory.gate.hold(lambda: clock.passes(1.0))
    done = machine.run(StepOrder(1, 1))
    assert done.checkpoint_s == len(machine.state)
    assert (done.weights_s, done.first_group_s) == (0.0, 0.0)
    assert machine.run(StepOrder(2, 1)).checkpoint_s == 0.0
