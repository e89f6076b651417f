"""The model_dir of a run: creation, removal, and a lock for one training at a time."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from support.accounts import OTHER, as_account, needs_two_accounts

from csrun.base.errors import UsageError
from csrun.records import model_dir

HOLDER = """
import sys, time
from pathlib import Path
from csrun.records import model_dir
with model_dir.locked(Path(sys.argv[1]), "job 7"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the folder's lock."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_into_which_nothing_was_written_goes_again(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with model_dir.opened(folder), model_dir.locked(folder, "job 1"):
        assert (folder / model_dir.LOCK_FILE).read_text() == "job 1"
    assert not folder.exists()


def test_a_folder_that_was_there_or_is_used_stays(tmp_path: Path) -> None:
    with model_dir.opened(tmp_path):
        pass
    assert tmp_path.exists()
    with model_dir.opened(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


@needs_two_accounts
def test_a_umask_that_takes_its_owners_rights_hinders_no_run(own_folder: Path) -> None:
    own_folder.chmod(0o777)
    folder = Path("new", "model_dir")

    def write() -> None:
        os.umask(0o777)
        with model_dir.opened(folder), model_dir.locked(folder, "job 1"):
            path = model_dir.write_params(folder, "train", {"seed": 1})
            assert path.read_text() == "seed: 1\n"

    assert as_account(OTHER, write) is None
    assert sorted(path.name for path in folder.iterdir()) == ["train"]


def test_what_a_killed_chief_left_of_its_look_at_the_folder_is_swept(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from csrun.records import model_dir;"
        "os.close = lambda descriptor: os.kill(os.getpid(), 9);"
        "model_dir.prepare(Path(sys.argv[1]))"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with model_dir.opened(tmp_path), model_dir.locked(tmp_path, "job 1"):
        assert [path.name for path in tmp_path.iterdir()] == [model_dir.LOCK_FILE]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "x" * 300 + "/below"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be written"), model_dir.opened(tmp_path / name):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong_ones = {"file": "is not a folder", "file/below": "cannot be written"}
    for name, message in wrong_ones.items():
        wrong = tmp_path / name
        with pytest.raises(UsageError, match=f"model_dir {wrong}: {message}"):
            model_dir.prepare(wrong)


def test_the_second_training_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path):
        with (
            pytest.raises(UsageError, match="in use by job 7; wait until it ends"),
            model_dir.locked(tmp_path, "job 8"),
        ):
            pass
        assert (tmp_path / model_dir.LOCK_FILE).read_text() == "job 7"
        assert model_dir.training_in(tmp_path) == "job 7"
    assert model_dir.training_in(tmp_path) == ""


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / model_dir.LOCK_FILE).exists()
    assert model_dir.training_in(tmp_path) == ""
    with model_dir.locked(tmp_path, "8"):
        assert (tmp_path / model_dir.LOCK_FILE).read_text() == "8"
    assert not (tmp_path / model_dir.LOCK_FILE).exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    for name in ("fcntl", "lockf"):
        monkeypatch.setattr(fcntl, name, refuse)
    with model_dir.locked(tmp_path, "job 7"):
        assert model_dir.training_in(tmp_path) == ""


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    with model_dir.locked(tmp_path, "job 1"):
        pass
    with holder(tmp_path):
        pass


def test_a_forked_child_does_not_hold_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    with model_dir.locked(tmp_path, "job 1"):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    with holder(tmp_path):  # while the child lives
        pass
    for descriptor in (read, write):
        os.close(descriptor)
    os.waitpid(child, 0)


def test_a_planted_link_in_the_locks_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / model_dir.LOCK_FILE).symlink_to("precious")
    with (
        pytest.raises(UsageError, match=r"\.lock: cannot be locked: .*; remove it"),
        model_dir.locked(tmp_path, "job 8"),
    ):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_lock(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / model_dir.LOCK_FILE)
    with (
        pytest.raises(UsageError, match=r"\.lock: cannot be locked: .*directory|regular"),
        model_dir.locked(tmp_path, "job 8"),
    ):
        pass


def test_a_full_disk_has_room_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    lock_file = model_dir._lock_file

    def without_room(path: Path) -> object:
        file = lock_file(path)
        file.truncate = full  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(model_dir, "_lock_file", without_room)
    with model_dir.locked(tmp_path, "job 8"):
        monkeypatch.undo()
        command = [sys.executable, "-c", HOLDER, str(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "in use by another process" in second.stderr


def test_leftovers_of_killed_writers_are_swept(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for folder in (tmp_path, tmp_path / "train"):
        (folder / ".csrun-0123abcd.tmp").touch()
    with model_dir.locked(tmp_path, "job 8"):
        pass
    assert not list(tmp_path.rglob(".csrun-*"))
