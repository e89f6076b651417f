"""Measurements of pipelines: results, and behaviour when a pipeline fails."""

import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from csrun.advice.measure import Feed, mean, measure
from csrun.data import DataError, Dataset, shard_info
from csrun.runtime.step.batch_maker import BatchNumbers

BATCH = 8


class Nowhere:
    """Sink that discards batches."""

    def __init__(self, tasks: int) -> None:
        self.descriptors = ()

    def join(self, task: int) -> None:
        """Do nothing, as all workers are equal."""

    def fed_by(self, dataset: Dataset, numbers: BatchNumbers) -> Feed:
        deliveries = dataset.deliveries(numbers.first, numbers.stride)
        return lambda: next((BATCH for _ in deliveries), None)

    def take(self, descriptor: int) -> None:
        raise AssertionError("there is no descriptor")

    def close(self) -> None:
        """Do nothing, as nothing is open."""


def data() -> Dataset:
    return Dataset.from_arrays(np.arange(64.0)).repeat().batch(BATCH)


def point(make: Any, tasks: int = 1, seconds: float = 0.4) -> Any:
    return measure(make, Nowhere, tasks, 1, seconds, sorted(os.sched_getaffinity(0)))


def test_a_worker_that_shares_its_cpu_says_how_long_it_waited() -> None:
    """Three busy workers on one CPU: time without the CPU is counted as waiting."""
    found = measure(data, Nowhere, tasks=3, cpus=1, seconds=0.5, real_cpus=[0])
    assert found.busy_cpus <= 1.1
    assert found.busy_cpus + found.starved_cpus == pytest.approx(3, rel=0.15)


def test_a_worker_begins_without_a_thread_of_blas() -> None:
    """A BLAS thread would spin for a while, which would count as the worker's waiting."""

    def alone() -> Dataset:
        assert len(os.listdir("/proc/self/task")) == 1
        assert all(blas["num_threads"] == 1 for blas in ThreadpoolController().info())
        return data()

    np.ones((256, 256)) @ np.ones((256, 256))  # the parent has its threads
    assert point(alone, seconds=0.05).tasks == 1


def test_sleeping_workers_add_up_and_cost_no_cpu() -> None:
    """10 ms of sleep per batch: at most 800 samples per second with one worker, 2400 with three."""

    def slow() -> Dataset:
        def nap(x: Any) -> Any:
            time.sleep(0.01)
            return x

        return data().map(nap)

    one, most = point(slow), BATCH / 0.01
    assert one.samples_per_s <= most
    for _ in range(10):  # a busy machine wakes them late
        rate = point(slow, tasks=3).samples_per_s
        assert rate <= 3 * most
        if rate > 1.5 * point(slow).samples_per_s:
            break
    else:
        raise AssertionError("three workers never made half as much again as one")
    (nap,) = [stage for stage in one.stages if stage.name == "map nap"]
    assert nap.wall_s >= 0.01 / BATCH
    assert nap.cpu_s < nap.wall_s / 4
    assert one.busy_cpus < 0.5


def test_a_stage_whose_time_is_random_says_how_much_it_scatters() -> None:
    """Every other batch sleeps for 20 ms: mean 10 ms, deviation 10 ms."""

    def slow() -> Dataset:
        turns = count()

        def nap(x: Any) -> Any:
            time.sleep(0.02 * (next(turns) % 2))
            return x

        return data().map(nap)

    (nap,) = [stage for stage in point(slow).stages if stage.name == "map nap"]
    assert nap.spread_s >= 0.008 / BATCH
    assert nap.wall_s >= 0.008 / BATCH
    threads = point(lambda: slow().map(lambda x: x, num_parallel_calls=2))
    assert {stage.spread_s for stage in threads.stages} == {0.0}


def test_each_worker_is_a_shard_of_its_own() -> None:
    def checked() -> Dataset:
        index, count = shard_info()
        assert count == 2
        return Dataset.from_arrays(np.arange(64)).shard(count, index).repeat().batch(BATCH)

    assert point(checked, tasks=2).tasks == 2
    assert shard_info() == (0, 1)


def test_data_that_ends_begins_anew() -> None:
    def short() -> Dataset:
        return Dataset.from_arrays(np.arange(16)).batch(BATCH)

    def once() -> Iterator[Any]:
        return ((np.arange(BATCH),) for _ in range(2))

    assert point(short).samples_per_s > 16 / 0.4
    assert point(lambda: Dataset.from_batches(once())).samples_per_s > 16 / 0.4


def test_workers_do_not_repeat_what_a_streamer_warns_of(capfd: pytest.CaptureFixture[str]) -> None:
    def replayed() -> Dataset:
        warnings.warn("once for each of them", stacklevel=1)
        return Dataset.from_batches([(np.arange(BATCH),)] * 3)

    assert point(replayed, tasks=2).samples_per_s > 0
    assert capfd.readouterr().err == ""


def test_batches_may_take_longer_than_the_measurement() -> None:
    """0.6 s per batch, six times the interval: the first batch's time tells the rest."""

    def slow() -> Dataset:
        def nap(x: Any) -> Any:
            time.sleep(0.6)
            return x

        return data().map(nap)

    assert 0 < point(slow, seconds=0.1).samples_per_s <= BATCH / 0.6


def test_a_failing_worker_ends_the_measurement(capfd: pytest.CaptureFixture[str]) -> None:
    def failing() -> Dataset:
        def broken(x: Any) -> Any:
            if x[0] == 32:
                raise ZeroDivisionError
            return x

        return data().map(broken)

    with pytest.raises(DataError, match="failed in a worker of the measurement"):
        point(failing, tasks=2)
    text = capfd.readouterr().err
    assert "ZeroDivisionError" in text
    assert "failed at sample 32" in text


def test_a_worker_that_is_killed_is_told_with_its_signal() -> None:
    def killed() -> Dataset:
        os.kill(os.getpid(), signal.SIGKILL)
        return data()

    with pytest.raises(
        DataError, match="input_fn: a worker of the measurement was killed by SIGKILL"
    ):
        point(killed)


def test_a_shard_without_a_batch_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    def empty() -> Dataset:
        return Dataset.from_arrays(np.arange(9)).filter(lambda x: False).batch(BATCH)

    with pytest.raises(DataError, match="the data set of streamer 0 of 1 has no batch"):
        point(empty)
    assert capfd.readouterr().err == ""


def test_a_pipeline_that_hangs_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging() -> Dataset:
        calls = iter(range(100))

        def stuck(x: Any) -> Any:
            if next(calls) == 3:
                signal.pause()
            return x

        return data().map(stuck)

    monkeypatch.setattr("csrun.advice.measure.LEAST_PATIENCE_S", 0.5)
    with pytest.raises(DataError, match="timeout: a worker made no batch"):
        point(hanging, seconds=0.1)


def test_a_first_batch_that_does_not_come_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The second worker waits for a signal; the first one has enough time on a loaded machine."""
    told = tmp_path / "told"

    def late() -> Dataset:
        while shard_info() == (1, 2) and not told.exists():
            time.sleep(0.01)
        return data().map(lambda x: time.sleep(0.01) or x)

    monkeypatch.setattr("csrun.advice.measure.FIRST_S", 1.5)
    monkeypatch.setattr(caplog.handler, "flush", told.touch)  # called after each record
    with caplog.at_level(logging.WARNING, "csrun"):
        assert point(late, tasks=2).tasks == 2
    assert [record.getMessage() for record in caplog.records] == [
        "input_fn: no first batch of 1 of 2 worker(s) for 1.5 s"
    ]


def test_no_process_is_left() -> None:
    point(data, tasks=2)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_two_measurements_are_one_by_their_mean() -> None:
    one, other = point(data), point(data)
    both = mean(one, other)
    assert both.samples_per_s == pytest.approx((one.samples_per_s + other.samples_per_s) / 2)
    assert both.seconds == pytest.approx(one.seconds + other.seconds)
