"""Clock of a process that waits, with a fake clock and poll."""

import pytest

from csrun.runtime.wire import run_time_clock, shared


class World:
    """Fake clock; `stops` are seconds by which each wait is too long."""

    def __init__(self, monkeypatch, stops, ready_at=None):
        self.now, self.stops, self.ready_at = 100.0, list(stops), ready_at
        self.asked = []
        monkeypatch.setattr(run_time_clock, "perf_counter", lambda: self.now)
        monkeypatch.setattr(shared, "monotonic", lambda: self.now)
        monkeypatch.setattr(run_time_clock._Lost, "seconds", 0.0)

    def poll(self, timeout_ms):
        self.asked.append(timeout_ms)
        self.now += timeout_ms / 1000 + (self.stops.pop(0) if self.stops else 0.0)
        return [(3, 1)] if self.ready_at is not None and self.now >= self.ready_at else []


def test_a_wait_takes_its_time(monkeypatch):
    world = World(monkeypatch, stops=[], ready_at=101.0)
    began = run_time_clock.awake_s()
    while not run_time_clock.poll_awake(world, 30.0):
        pass
    assert run_time_clock.awake_s() - began == pytest.approx(1.0, abs=run_time_clock.SLICE_S)
    assert max(world.asked) == pytest.approx(run_time_clock.SLICE_S * 1000)


def test_a_stop_amid_a_wait_is_none_of_it(monkeypatch):
    world = World(monkeypatch, stops=[0.0, 2.0, 0.0], ready_at=103.0)
    began = run_time_clock.awake_s()
    while not run_time_clock.poll_awake(world, 30.0):
        pass
    assert world.now - 100.0 == pytest.approx(3.0, abs=run_time_clock.SLICE_S)
    assert run_time_clock.awake_s() - began == pytest.approx(1.0, abs=run_time_clock.SLICE_S)


def test_a_slice_that_is_a_little_late_is_a_wait(monkeypatch):
    world = World(monkeypatch, stops=[run_time_clock.SLICE_S / 2] * 4, ready_at=100.3)
    began = run_time_clock.awake_s()
    while not run_time_clock.poll_awake(world, 30.0):
        pass
    assert run_time_clock.awake_s() - began == world.now - 100.0


def test_a_wait_is_told_of_when_it_is_long_however_it_is_cut(monkeypatch):
    """After 30 s, and again after 60; a wait for MemoryX names the waiting task."""
    told = []
    world = World(monkeypatch, stops=[], ready_at=175.0)
    assert shared.StallWatch(told.append).poll(world) == [(3, 1)]
    assert told == [pytest.approx(30, abs=0.1), pytest.approx(60, abs=0.1)]


class Eager(World):
    """Poll that takes a microsecond, plus any stop during it."""

    def poll(self, timeout_ms):
        assert timeout_ms == 0
        self.now += 1e-6
        return super().poll(timeout_ms)


def test_a_brief_wait_looks_until_it_is_ready(monkeypatch):
    world = Eager(monkeypatch, stops=[], ready_at=100.0001)
    assert run_time_clock.poll_briefly(world, 300e-6) == [(3, 1)]
    assert world.now - 100.0 == pytest.approx(100e-6, rel=0.05)


def test_a_brief_wait_ends_without_what_does_not_come(monkeypatch):
    world = Eager(monkeypatch, stops=[])
    began = run_time_clock.awake_s()
    assert run_time_clock.poll_briefly(world, 300e-6) == []
    assert run_time_clock.awake_s() - began == pytest.approx(300e-6, rel=0.05)


def test_a_stop_amid_a_brief_wait_is_none_of_it(monkeypatch):
    world = Eager(monkeypatch, stops=[0.0, 2.0])
    began = run_time_clock.awake_s()
    assert run_time_clock.poll_briefly(world, 300e-6) == []
    assert world.now - 100.0 > 2
    assert run_time_clock.awake_s() - began == pytest.approx(300e-6, rel=0.05)
