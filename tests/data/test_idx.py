"""IDX files: golden bytes, and damaged files refused by name."""

import gzip
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.jobs import STALL_S

from csrun.context import JobFile, Role, TaskEntry, current
from csrun.data import DataError
from csrun.data.formats import idx

# two images of 2 by 3 pixels, as the format's description lays them out
GOLDEN = b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 2, 3) + bytes(range(12))


def written(folder: Path, content: bytes, name: str = "images") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_golden_bytes(tmp_path: Path, pack: object) -> None:
    array = idx.read(written(tmp_path, pack(GOLDEN)))  # type: ignore[operator]
    assert array.dtype == np.uint8
    assert array.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


@pytest.mark.parametrize(
    ("code", "form", "values", "dtype"),
    [
        (0x09, ">3b", (-1, 0, 1), "int8"),
        (0x0B, ">3h", (-300, 0, 300), "int16"),
        (0x0C, ">3i", (-70000, 0, 70000), "int32"),
        (0x0D, ">3f", (-1.5, 0.0, 0.25), "float32"),
        (0x0E, ">3d", (-1.5, 0.0, 0.1), "float64"),
    ],
)
def test_big_endian_types_become_native(
    tmp_path: Path, code: int, form: str, values: tuple[float, ...], dtype: str
) -> None:
    content = bytes((0, 0, code, 1)) + struct.pack(">I", 3) + struct.pack(form, *values)
    array = idx.read(written(tmp_path, content))
    assert array.dtype == np.dtype(dtype)
    assert array.dtype.isnative
    assert tuple(array.tolist()) == values


BROKEN = {
    "empty": (b"", "images", "at least 4 bytes, got 0"),
    "magic": (b"\x89PNG" + GOLDEN, "images", "two zero bytes.*0x89504e47"),
    "type": (b"\x00\x00\x07" + GOLDEN[3:], "images", "type code.*0x00000703"),
    "header": (GOLDEN[:10], "images", "3 axes need 16 bytes, got 10"),
    "truncated": (GOLDEN[:-1], "images", r"shape \[2, 2, 3\] of uint8 needs 28 bytes, got 27"),
    "too-long": (GOLDEN + b"x", "images", "needs 28 bytes, got 29"),
    "huge": (b"\x00\x00\x0e\x03" + b"\xff" * 12, "images", "got 16"),
    "gzip-cut": (gzip.compress(GOLDEN)[:-9], "images.gz", "damaged gzip file"),
    "gzip-flip": (gzip.compress(GOLDEN)[:-8] + bytes(8), "images.gz", "damaged gzip file"),
    "not-gzip": (GOLDEN, "images.gz", "must be a gzip file, got first bytes 0x00000803"),
}


@pytest.mark.parametrize(("content", "name", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused_by_name(
    tmp_path: Path, content: bytes, name: str, message: str
) -> None:
    path = written(tmp_path, content, name)
    with pytest.raises(DataError, match=message) as caught:
        idx.read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no-such: no such file"):
        idx.read(tmp_path / "no-such")


def test_find_takes_the_packed_file_when_there_is_no_other(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither labels nor labels\.gz"):
        idx.find(tmp_path, "labels")
    packed = written(tmp_path, gzip.compress(GOLDEN), "labels.gz")
    assert idx.find(tmp_path, "labels") == packed
    plain = written(tmp_path, GOLDEN, "labels")
    assert idx.find(tmp_path, "labels") == plain


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CSRUN_CACHE_DIR", str(tmp_path / "caches"))
    return tmp_path / "caches"


@pytest.fixture
def job(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "job"
    folder.mkdir()
    entry = TaskEntry(rank=0, role=Role.STREAMER, node="n", node_id=0, local_rank=0, cpus=(0,))
    JobFile(1, None, ("python",), str(tmp_path), "local", 1, 1, (entry,)).write(folder)
    monkeypatch.setenv("CSRUN_JOB_DIR", str(folder))
    monkeypatch.setenv("SLURM_PROCID", "0")
    current.cache_clear()
    yield folder
    current.cache_clear()


# A decoder that waits until every task is about to read, so that all want the file at once.
TASK = """
import os, sys, time
from csrun.data import idx

path, folder, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
plain = idx.decode

def counting(file):
    open(f"{folder}/decoded-{os.getpid()}", "w").close()
    while len([name for name in os.listdir(folder) if name.startswith("ready")]) < tasks:
        time.sleep(0.01)
    return plain(file)

idx.decode = counting
open(f"{folder}/ready-{os.getpid()}", "w").close()
array = idx.read(path)
print(type(array).__name__, array.flags.writeable, array.tolist())
"""


def test_tasks_of_a_job_decode_once(tmp_path: Path, job: Path) -> None:
    path, count = written(tmp_path, gzip.compress(GOLDEN)), 4
    command = [sys.executable, "-c", TASK, str(path), str(tmp_path), str(count)]
    tasks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    printed = [task.communicate(timeout=STALL_S)[0] for task in tasks]
    assert printed == [f"memmap False {idx.decode(path).tolist()}\n"] * count
    assert len(list(tmp_path.glob("decoded-*"))) == 1


def test_a_changed_file_is_decoded_anew(tmp_path: Path, job: Path) -> None:
    path = written(tmp_path, GOLDEN)
    assert idx.read(path).sum() == sum(range(12))
    path.write_bytes(GOLDEN[:16] + bytes(12))
    os.utime(path, ns=(1, 1))
    assert idx.read(path).sum() == 0


def test_an_array_without_elements_is_shared_too(tmp_path: Path, job: Path) -> None:
    path = written(tmp_path, b"\x00\x00\x08\x01" + bytes(4))
    assert idx.read(path).shape == idx.read(path).shape == (0,)


@pytest.mark.usefixtures("job")
def test_nothing_is_cached_for_a_broken_file(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path, GOLDEN[:-1])
    with pytest.raises(DataError):
        idx.read(path)
    assert not list(cache.glob("decoded/*/array.*"))


def kept(cache: Path, name: str) -> Path:
    (found,) = cache.glob(f"decoded/*/{name}")
    return found


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def change_a_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def replace_with_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_with_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_with_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES = [
    Path.unlink, cut_short, change_a_bit, replace_with_folder, replace_with_fifo, replace_with_loop,
]  # fmt: skip


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("name", ["array.npy", "array.json", "lock"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_kept_may_be_damaged_or_missing(
    damage: Callable[[Path], None], name: str, tmp_path: Path, cache: Path
) -> None:
    path = written(tmp_path, GOLDEN)
    idx.read(path)
    if (kept(cache, name)).stat().st_size or damage not in (cut_short, change_a_bit):
        damage(kept(cache, name))
    for _ in range(2):
        assert idx.read(path).tolist() == idx.decode(path).tolist()


@pytest.mark.usefixtures("job")
def test_it_is_kept_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CSRUN_CACHE_DIR", str(tmp_path / "file" / "below"))
    path = written(tmp_path, GOLDEN)
    assert idx.read(path).tolist() == idx.decode(path).tolist()


@pytest.mark.usefixtures("job")
def test_what_nobody_reads_any_more_goes(tmp_path: Path, cache: Path) -> None:
    for name in ("old", "new", "newest"):
        array = idx.read(written(tmp_path, GOLDEN, name))
        if name == "old":
            old = kept(cache, "array.npy").parent
            os.utime(old, (0, 0))
            kept_in_use = array
    assert not old.exists()
    assert len(list(cache.glob("decoded/*/array.npy"))) == 2
    assert kept_in_use.sum() == sum(range(12))


@pytest.mark.usefixtures("job")
def test_what_is_kept_is_the_accounts_alone(tmp_path: Path, cache: Path) -> None:
    idx.read(written(tmp_path, GOLDEN))
    assert kept(cache, "array.npy").parent.stat().st_mode & 0o777 == 0o700
