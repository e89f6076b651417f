"""Files that are whole or absent, and on disk where that is asked for."""

import ast
import errno
import os
from pathlib import Path

import pytest

import csrun
from csrun.base.files import replace_link, write_whole

ROOT = Path(csrun.__file__).parent
WRITE_LARGE_ONES = {"data/cache.py", "records/checkpoints/write.py"}  # as a stream, not as bytes


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    write_whole(path, b"before", durable=durable)
    write_whole(path, b"after", durable=durable)
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write_whole(path, b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_and_its_folder_are_flushed_when_durable_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    write_whole(tmp_path / "file", b"", durable=False)
    assert flushed == []
    write_whole(tmp_path / "file", b"")
    assert flushed == [str(tmp_path / ".file.tmp"), str(tmp_path)]


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
    """True when a module puts a temporary file into another's place by itself."""
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
