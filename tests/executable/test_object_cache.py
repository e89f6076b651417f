"""Object cache of an account: built once for all processes, rebuilt if damaged."""

import errno
import logging
import os
import subprocess
import sys

import pytest

from csrun.executable import object_cache
from csrun.executable.object_cache import ObjectCache


class Builder:
    """Build function that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return b"object" * 100


@pytest.fixture
def build():
    return Builder()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "objects"


def built_twice(folder, build, source="a"):
    return [ObjectCache(folder).built(source, build) for _ in range(2)]


def test_an_object_is_built_once_for_each_source(folder, build):
    assert built_twice(folder, build) == [b"object" * 100] * 2
    assert build.count == 1
    built_twice(folder, build, "b")
    assert build.count == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:40] + b"x", bytes])
def test_a_damaged_entry_is_built_again(folder, build, damage, caplog):
    caplog.set_level(logging.INFO, "csrun")
    built_twice(folder, build)
    (entry,) = folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()) if damage is not bytes else b"")
    assert built_twice(folder, build) == [b"object" * 100] * 2
    assert build.count == 2
    assert caplog.messages == [f"{entry}: damaged, rebuilt"]


def test_a_folder_that_others_may_write_is_not_used(folder, build):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    built_twice(folder, build)
    assert build.count == 2
    assert not list(folder.iterdir())


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, build):
    (tmp_path / "file").write_text("")
    built_twice(tmp_path / "file" / "objects", build)
    assert build.count == 2


def test_a_full_disk_is_done_without(folder, build, monkeypatch, caplog):
    def write(path, data, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(object_cache, "write_atomic", write)
    assert built_twice(folder, build) == [b"object" * 100] * 2
    assert build.count == 2
    assert not caplog.messages


WRITER = """
import sys
from pathlib import Path
from csrun.executable.object_cache import ObjectCache
input()
cache = ObjectCache(Path(sys.argv[1]))
for n in range(200):
    data = bytes([n]) * 5000
    assert cache.built(str(n), lambda: data) == data
cache.trim()
"""


def test_processes_write_the_same_entries_at_once(folder, build):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    for writer in writers:
        writer.communicate(b"\n")
    assert [writer.returncode for writer in writers] == [0, 0]
    cache = ObjectCache(folder)
    assert [cache.built(str(n), build) for n in range(200)] == [
        bytes([n]) * 5000 for n in range(200)
    ]
    assert build.count == 0
    assert len(list(folder.iterdir())) == 200  # no temporary file


def test_the_least_recently_used_make_room(folder, build, monkeypatch):
    for age_s, source in enumerate("cba"):  # a is the oldest
        ObjectCache(folder).built(source, build)
        newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (0, 1000 - age_s))
    ObjectCache(folder).built("a", build)  # which is used again
    monkeypatch.setattr(object_cache, "MOST_BYTES", 3 * 700)
    cache = ObjectCache(folder)
    cache.trim()  # nothing: it has added none
    cache.built("d", build)
    cache.trim()
    assert build.count == 4
    ObjectCache(folder).built("a", build)
    assert build.count == 4
    ObjectCache(folder).built("b", build)
    assert build.count == 5
