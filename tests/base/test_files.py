"""Files written atomically, and flushed to disk on request."""

import ast
import errno
import os
import stat
from pathlib import Path

import pytest
from support.accounts import OTHER, needs_two_accounts

import csrun
from csrun.base import files
from csrun.base.errors import UsageError
from csrun.base.files import (
    make_folder,
    make_private,
    make_temporary_folder,
    read_file,
    replace_link,
    sweep_temporaries,
    write_atomic,
)

ROOT = Path(csrun.__file__).parent
WRITE_LARGE_ONES = {
    "data/formats/decoded.py",
    "data/formats/token_files.py",
    "records/checkpoints/write.py",
}  # as a stream, not as bytes


def test_what_is_read_is_a_regular_file_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_file(path, 5) == read_file(tmp_path / "link") == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_file(path, 4)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for wrong in ("pipe", "loop", ".", "x" * 300):
        with pytest.raises(OSError, match=r"regular|symbolic|directory|long"):
            read_file(tmp_path / wrong)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")


def test_nobody_can_plant_the_file_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csrun.base.files.os.urandom", bytes)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".csrun-00000000.tmp").symlink_to("precious")
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "file", b"theirs")
    assert (tmp_path / "precious").read_text() == "mine"


def test_leftovers_of_ours_are_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (tmp_path / ".csrun-0123abcd.tmp").touch()
    (tmp_path / ".csrun-1123abcd.tmp").symlink_to("precious")
    (tmp_path / ".csrun-mine.tmp").touch()
    sweep_temporaries(tmp_path)
    sweep_temporaries(tmp_path / "missing")
    assert {path.name for path in tmp_path.iterdir()} == {"precious", ".csrun-mine.tmp"}


def test_a_writer_whose_temporary_file_was_swept_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def swept(self: Path, target: Path) -> Path:
        monkeypatch.undo()
        sweep_temporaries(tmp_path)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", swept)
    write_atomic(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"before", durable=durable)
    write_atomic(path, b"after", durable=durable)
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write_atomic(path, b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_and_its_folder_are_flushed_when_durable_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    write_atomic(tmp_path / "file", b"", durable=False)
    assert flushed == []
    write_atomic(tmp_path / "file", b"")
    temporary, folder = flushed
    assert Path(temporary).parent == tmp_path
    assert folder == str(tmp_path)


def test_a_link_is_replaced_as_a_whole(tmp_path: Path) -> None:
    link = tmp_path / "link"
    for target in ("first", "second"):
        (tmp_path / target).write_text(target)
        replace_link(link, Path(target))
        assert link.read_text() == target
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second", "link"}


def test_a_link_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replace_link(tmp_path / "link", Path("target"))
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def renames(text: str) -> bool:
    """Whether a module renames a temporary file over another by itself."""
    calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return any(
        isinstance(func, ast.Attribute)
        and func.attr == "replace"
        and isinstance(func.value, ast.Name)
        and func.value.id in {"temporary", "os"}
        for func in calls
    )


def test_small_files_are_written_in_one_place() -> None:
    found = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if renames(p.read_text())}
    assert found == {"base/files.py", *WRITE_LARGE_ONES}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o777])
def test_a_private_folder_is_private_from_the_start(tmp_path, umask):
    before = os.umask(umask)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    make_private(tmp_path / "a" / "b")  # ours, and there


@pytest.mark.parametrize(
    ("umask", "mode"),
    [(0o002, 0o775), (0o077, 0o700), (0o177, 0o700), (0o750, 0o727), (0o777, 0o700)],
)
def test_a_umask_leaves_a_folder_to_its_owner_and_binds_all_others(tmp_path, umask, mode):
    (tmp_path / "there").mkdir(0o500)
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "there")
        make_folder(tmp_path / "a" / "b")
        temporary = make_temporary_folder(tmp_path, ".t")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "there")]
    assert modes == [mode, mode, 0o500]
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700


def test_a_folder_is_not_made_where_something_else_lies(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for taken in ("file", "link", "link/below"):
        with pytest.raises(FileExistsError):
            make_folder(tmp_path / taken)


def test_a_folder_that_others_may_write_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o775)
    with pytest.raises(UsageError, match=r"writable by others \(mode 0775\)"):
        make_private(tmp_path / "open")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o775


@needs_two_accounts
def test_another_accounts_folder_is_refused_by_name(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(UsageError, match=f"owned by uid {OTHER}, who could modify"):
        make_private(folder)


def test_a_temporary_folder_that_another_process_deletes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another process that cleans up after a killed one."""
    made: list[Path] = []

    def enter(folder: Path) -> None:
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
            raise FileNotFoundError(folder)

    monkeypatch.setattr(files, "_let_owner_enter", enter)
    folder = make_temporary_folder(tmp_path, ".x.")
    assert folder == made[1]
    assert [*tmp_path.iterdir()] == [folder]
