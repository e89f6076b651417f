"""Termination signals deferred until the run handles them; each is sent to this process."""

import multiprocessing
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest

from csrun.context import deferred_termination
from csrun.context.deferred_termination import DeferredTermination
from csrun.context.job import REASON_FILE


class Told(BaseException):
    """Raised by the handlers around a `DeferredTermination`."""


@pytest.fixture(autouse=True)
def raising() -> Iterator[None]:
    def tell(signum: int, frame: object) -> None:
        raise Told(signum)

    old = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


def test_a_signal_is_kept_until_the_block_is_left() -> None:
    reached = []
    with pytest.raises(Told, match=str(int(signal.SIGTERM))), DeferredTermination() as deferred:
        assert deferred.received is None
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # Slurm's, and the launcher's
        reached.append(deferred.received)
    assert reached == [signal.SIGTERM]


def test_without_a_signal_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with DeferredTermination():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_it_acts_at_once_when_there_is_nothing_left_to_do() -> None:
    with pytest.raises(Told), DeferredTermination(is_over=lambda: True):
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")


def test_a_second_ctrl_c_acts_at_once_and_a_burst_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`timeout -s INT` signals its child, and then the group that contains it."""
    now_s = [5.0]
    monkeypatch.setattr(deferred_termination, "monotonic", lambda: now_s[0])
    with pytest.raises(Told), DeferredTermination() as deferred:
        signal.raise_signal(signal.SIGINT)
        now_s[0] += 0.1
        signal.raise_signal(signal.SIGINT)
        assert deferred.received is signal.SIGINT
        now_s[0] += 0.2
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")


def test_it_acts_when_the_grace_is_nearly_over_whatever_we_wait_for() -> None:
    with pytest.raises(Told), DeferredTermination(grace_s=0.2) as deferred:
        signal.raise_signal(signal.SIGTERM)
        assert deferred.left_s is not None
        assert 0 < deferred.left_s < 0.2
        time.sleep(30)
        pytest.fail("it went on")
    assert deferred.is_late


def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with DeferredTermination() as deferred:
        signal.raise_signal(signal.SIGINT)
        assert deferred.received is None


def test_a_worker_that_the_user_terminates_ends() -> None:
    """As workers of a multiprocessing.Pool when its block ends."""
    fork = multiprocessing.get_context("fork")
    is_up = fork.Event()

    def work() -> None:
        is_up.set()
        time.sleep(30)

    with DeferredTermination():
        worker = fork.Process(target=work)
        worker.start()
        is_up.wait(10)
        worker.terminate()
        worker.join(60)
        assert worker.exitcode is not None


def task_of(monkeypatch: pytest.MonkeyPatch, job_dir: Path, grace_s: float) -> None:
    """Make this process a task of a job with this folder."""
    context = SimpleNamespace(job_dir=job_dir, job=SimpleNamespace(grace_s=grace_s))
    monkeypatch.setattr(deferred_termination, "current", lambda: context)


def test_the_reason_of_the_launcher_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with Slurm, which signals tasks before their launcher."""
    task_of(monkeypatch, tmp_path, grace_s=1000.0)
    monkeypatch.setattr(deferred_termination, "REASON_S", 60.0)
    writing = Timer(0.1, (tmp_path / REASON_FILE).write_text, ("preempted by Slurm",))
    writing.start()
    assert deferred_termination.reason_to_end(signal.SIGTERM) == "preempted by Slurm"
    writing.join()


def test_without_a_reason_the_signal_is_named_within_a_tenth_of_the_grace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task_of(monkeypatch, tmp_path, grace_s=0.1)
    monkeypatch.setattr(deferred_termination, "REASON_S", 1e6)
    assert deferred_termination.reason_to_end(signal.SIGTERM) == "SIGTERM"
    assert deferred_termination.reason_to_end(signal.SIGINT) == "Ctrl-C (SIGINT)"
