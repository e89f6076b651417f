"""Writers that are killed, stopped or out of space leave the newest checkpoint intact."""

import errno
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from csrun.base import files
from csrun.base.errors import CsrunError
from csrun.records import checkpoints, tensor_files
from csrun.records.checkpoints import folder_files

SIZE = 200_000  # values of a tensor
TENSORS = {"kernel": np.full(SIZE, 1, np.float32), "momentum/kernel": np.zeros(SIZE, np.float32)}

# Writes checkpoints without end, as slowly as a disk; prints a line before each.
WRITER = f"""
import sys, time, zlib
from pathlib import Path
import numpy as np
from csrun.records import checkpoints

crc32 = zlib.crc32
zlib.crc32 = lambda *arguments: time.sleep(0.002) or crc32(*arguments)
folder, step = Path(sys.argv[1]), int(sys.argv[2])
while True:
    tensors = {{name: np.full({SIZE}, step, np.float32) for name in {list(TENSORS)}}}
    print(step, flush=True)
    checkpoints.write(folder, step, tensors, {{}}, 2)
    step += 1
"""


def newest(folder: Path) -> int:
    """Newest step, whose values are checked."""
    found = checkpoints.latest(folder)
    assert found is not None
    target = {name: np.zeros_like(array) for name, array in TENSORS.items()}
    found.restore(target)
    assert all((array == found.step).all() for array in target.values())
    return found.step


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def kill_at_a_random_moment(folder: Path, step: int, wait_s: float) -> None:
    command = [sys.executable, "-c", WRITER, str(folder), str(step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):  # the first is whole when the second line comes
            assert select.select([process.stdout], [], [], 60)[0]
            process.stdout.readline()
        select.select([], [], [], wait_s)
        process.send_signal(signal.SIGKILL)


def survive(folder: Path, kills: int) -> None:
    moments, step = random.Random(kills), 1
    for _ in range(kills):
        kill_at_a_random_moment(folder, step, moments.uniform(0, 0.05))
        reached = newest(folder)
        assert reached >= step
        step = reached + 1
    checkpoints.write(folder, step, TENSORS, {}, 2)
    assert not leftovers(folder)
    assert len(list(folder.glob("model-ckpt-*"))) == 2 * 2


def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    survive(tmp_path, 4)


@pytest.mark.slow
def test_writers_killed_at_many_moments_leave_a_whole_checkpoint(tmp_path: Path) -> None:
    survive(tmp_path, 60)


def test_a_folder_is_looked_at_once_however_many_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = checkpoints.Writer(tmp_path, {}, 100)
    writer.write(1, filled(1))

    def look(*_: object) -> None:
        raise AssertionError("looked at the folder again")

    monkeypatch.setattr(folder_files, "steps_in", look)
    monkeypatch.setattr(folder_files, "read_index", look)
    monkeypatch.setattr(files, "sweep_temporaries", look)
    for step in range(2, 6):
        writer.write(step, filled(step))
    monkeypatch.undo()
    assert checkpoints.kept_steps(tmp_path) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("again", [False, True], ids=["new-step", "step-again"])
def test_a_stop_at_any_call_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Each run stops before one more of the calls that change the disk, as by SIGKILL."""
    for stop in range(40):
        folder = tmp_path / str(stop)
        folder.mkdir()
        for step in (1, 2):
            checkpoints.write(folder, step, filled(step), {}, 2)
        step = 2 if again else 3
        if not stopped_write(folder, step, stop, monkeypatch):
            assert newest(folder) == step
            assert stop > 5
            return
        assert newest(folder) in (1, 2, step)
    pytest.fail("the writer never came to its end")


def test_a_stop_at_any_call_of_the_first_write_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for stop in range(40):
        folder = tmp_path / str(stop)
        folder.mkdir()
        was_stopped = stopped_write(folder, 0, stop, monkeypatch)
        newest = checkpoints.latest(folder)
        found.add(None if newest is None else newest.step)
        checkpoints.write(folder, 0, filled(0), {}, 2)
        assert checkpoints.kept_steps(folder) == (0,)
        if not was_stopped:
            assert found == {None, 0}
            return
    pytest.fail("the writer never came to its end")


class Killed(BaseException):
    """Stand-in for SIGKILL: the disk does not change from here on."""


def filled(step: int) -> dict[str, np.ndarray]:
    return {name: np.full(SIZE, step, np.float32) for name in TENSORS}


def stopped_write(folder: Path, step: int, calls: int, patch: pytest.MonkeyPatch) -> bool:
    """Write a checkpoint, stopping before its `calls`-th call; return whether it stopped."""
    left = [calls]

    def counted(plain: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return plain(*arguments, **options)

        return call

    with patch.context() as patched:
        patched.setattr(os, "replace", counted(os.replace))
        patched.setattr(os, "fsync", counted(os.fsync))
        patched.setattr(Path, "replace", counted(Path.replace))
        patched.setattr(Path, "unlink", counted(Path.unlink))
        try:
            checkpoints.write(folder, step, filled(step), {}, 2)
        except Killed:
            return True
    return False


class FullDisk(FileIO):
    """File on a disk with room for 1 MB."""

    def write(self, data: Any) -> int:
        """Write, or raise as the kernel does on a full disk."""
        if self.tell() + len(data) > 1_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def assert_refused_and_whole(folder: Path) -> None:
    with pytest.raises(CsrunError, match="disk full") as caught:
        checkpoints.write(folder, 2, filled(2), {}, 2)
    assert re.search(
        r"model-ckpt-2\.safetensors: .* needs 1,600,000 bytes, [\d,]+", str(caught.value)
    )
    assert newest(folder) == 1
    assert not leftovers(folder)


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path, 1, filled(1), {}, 2)
    monkeypatch.setattr(tensor_files, "FileIO", FullDisk)
    assert_refused_and_whole(tmp_path)


@pytest.mark.parametrize(
    ("number", "free", "said"),
    [
        (errno.ENOSPC, 5, "disk full: the checkpoint needs 1,600,000 bytes, 5 are free;"),
        (errno.ENOSPC, 9_000_000, "disk full: .* bytes, 9,000,000 are free now;"),
        (errno.EDQUOT, 9_000_000, "disk quota exceeded: .* needs 1,600,000 bytes, "),
    ],
)
def test_what_a_disk_lacked_is_told_by_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, free: int, said: str
) -> None:
    def refuse(path: Path, tensors: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tensor_files, "write", refuse)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(CsrunError, match=said):
        checkpoints.write(tmp_path, 1, filled(1), {}, 2)


def test_a_disk_that_fails_for_good_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary files cannot be removed either; the next training removes them."""

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    checkpoints.write(tmp_path, 1, filled(1), {}, 2)
    with monkeypatch.context() as disk:
        for call in ("fsync", "unlink", "replace", "rename"):
            disk.setattr(os, call, broken)
        with pytest.raises(
            CsrunError, match=r"model-ckpt-2\.safetensors: cannot be written: Input"
        ):
            checkpoints.write(tmp_path, 2, filled(2), {}, 2)
    assert newest(tmp_path) == 1
    files.sweep_temporaries(tmp_path)
    assert not leftovers(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2500k", "csrun-test", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    checkpoints.write(small_disk, 1, filled(1), {}, 2)
    assert_refused_and_whole(small_disk)


def test_an_interrupted_writer_discards_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write(tmp_path, 1, filled(1), {}, 2)

    def interrupt(*arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(zlib, "crc32", interrupt)  # after a part was written
        checkpoints.write(tmp_path, 2, filled(2), {}, 2)
    assert newest(tmp_path) == 1
    assert not leftovers(tmp_path)


def test_tensors_without_a_manifest_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once the tensors are written, which would take the space."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("csrun.base.stored.write", full)
    with pytest.raises(CsrunError, match="disk full"):
        checkpoints.write(tmp_path, 60, {"a": np.ones(2, np.float32)}, {}, 1)
    assert list(tmp_path.iterdir()) == []
