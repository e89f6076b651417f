"""Checkpoints during a training: contents, commit, and failures."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from csrun.base.errors import CsrunError
from csrun.context.deferred_termination import DeferredTermination
from csrun.records import checkpoints, tensor_files
from csrun.runtime.chief.machine import UpdatePause
from csrun.runtime.chief.training.saving import Saving

WAIT_S = 120.0


class Disk:
    """Disk whose flushes wait for the test; one may fail."""

    def __init__(self) -> None:
        self.waits, self.may_go_on = threading.Event(), threading.Event()
        self.fails = False

    def fsync(self, descriptor: int) -> None:
        self.waits.set()
        assert self.may_go_on.wait(WAIT_S)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Disk for tensors only; the small files after them are flushed as usual."""
    disk = Disk()
    monkeypatch.setattr(tensor_files, "os", disk)
    yield disk
    disk.may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join(WAIT_S)


def saving_in(folder: Path) -> Saving:
    return Saving(folder, checkpoints.Writer(folder, {}, 5), DeferredTermination(), 0, "be careful")


def begin(saving: Saving, step: int, state: dict[str, np.ndarray]) -> None:
    """Start a copy as a process that makes no step before it ends."""
    copied = threading.Semaphore(0)
    saving.begin(step, state, lambda: UpdatePause(tuple(state), copied.release, lambda: None))
    for _ in state:
        assert copied.acquire(timeout=WAIT_S)


def state_of(value: float) -> dict[str, np.ndarray]:
    return {name: np.full(1000, value, np.float32) for name in ("kernel", "momentum/kernel")}


def assert_holds(folder: Path, step: int, value: float) -> None:
    found = checkpoints.latest(folder)
    assert found is not None
    assert found.step == step
    assert all((tensor == value).all() for _, tensor in found.read(found.manifest.tensors))


def test_the_state_changes_while_the_disk_is_waited_for(tmp_path: Path, disk: Disk) -> None:
    saving, state = saving_in(tmp_path), state_of(1)
    begin(saving, 7, state)
    assert disk.waits.wait(WAIT_S)
    for tensor in state.values():
        tensor[...] = 2
    saving.check()
    assert checkpoints.kept_steps(tmp_path) == ()  # it does not count yet
    disk.may_go_on.set()
    saving.wait()
    assert_holds(tmp_path, 7, 1)
    begin(saving, 9, state)
    saving.end(None)
    assert_holds(tmp_path, 9, 2)
    assert checkpoints.kept_steps(tmp_path) == (7, 9)


def test_a_disk_that_fails_behind_the_training_is_told_of(tmp_path: Path, disk: Disk) -> None:
    saving = saving_in(tmp_path)
    disk.fails = True
    begin(saving, 7, state_of(1))
    disk.may_go_on.set()
    with pytest.raises(CsrunError, match=r"model-ckpt-7\.safetensors: cannot be written"):
        saving.wait()
    saving.wait()  # told once
    assert not list(tmp_path.iterdir())
    disk.fails = False
    begin(saving, 7, state_of(3))  # as by a script that has caught it
    saving.wait()
    assert_holds(tmp_path, 7, 3)


def test_another_error_of_the_run_waits_for_what_is_copied(tmp_path: Path, disk: Disk) -> None:
    saving = saving_in(tmp_path)
    begin(saving, 7, state_of(1))
    threading.Timer(0.05, disk.may_go_on.set).start()
    saving.end(RuntimeError("the wafer is gone"))
    assert_holds(tmp_path, 7, 1)


def test_an_end_at_once_discards_what_does_not_count_yet(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("csrun.runtime.chief.training.saving.STOPPED_S", 0.01)
    saving = saving_in(tmp_path)
    begin(saving, 7, state_of(1))
    assert disk.waits.wait(WAIT_S)
    with caplog.at_level("INFO", "csrun"):
        saving.end(KeyboardInterrupt())
    assert "Checkpoint at global step 7 discarded" in caplog.messages
    assert not list(tmp_path.iterdir())
    disk.may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join(WAIT_S)
    assert not list(tmp_path.iterdir())


def test_what_is_not_finite_is_no_checkpoint(tmp_path: Path) -> None:
    saving = saving_in(tmp_path)
    begin(saving, 5, state_of(1))
    broken = state_of(1)
    broken["momentum/kernel"][-1] = np.nan
    with pytest.raises(CsrunError, match=r"tensor momentum/kernel is not finite after step 6: .*"
                       "the last good checkpoint is model-ckpt-5; be careful"):  # fmt: skip
        begin(saving, 6, broken)
        saving.wait()
    assert_holds(tmp_path, 5, 1)
