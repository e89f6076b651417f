"""Sharding of input: by batch, by file, or by the user."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csrun.data import DataError, Dataset, Sharding, shard_info
from csrun.data.sharding import sharded_as

FILES, ROWS = 5, 6


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """Pattern of files with the numbers 0.., ROWS each."""
    for file in range(FILES):
        np.save(tmp_path / f"part-{file}.npy", np.arange(file * ROWS, (file + 1) * ROWS))
        text = "".join(f"{k}\n" for k in range(file * ROWS, (file + 1) * ROWS))
        (tmp_path / f"part-{file}.txt").write_text(text)
    return str(tmp_path / "part-*")


def number(line: Any) -> Any:
    return np.int64(bytes(line) if line.ndim else line.item())


def opened(pattern: str, suffix: str) -> Dataset:
    return Dataset.from_files(f"{pattern}.{suffix}")


def flat(dataset: Dataset, start: int = 0, stride: int = 1) -> list[int]:
    mapped = dataset if dataset.indexable else dataset.map(lambda x: x.astype(np.int64))
    return [value for (batch,) in mapped.batches(start, stride) for value in batch.tolist()]


def of_file(file: int) -> list[int]:
    return list(range(file * ROWS, (file + 1) * ROWS))


def test_without_a_launcher_there_is_one_shard() -> None:
    assert shard_info() == (0, 1)
    with sharded_as(2, 5):
        assert shard_info() == (2, 5)
    assert shard_info() == (0, 1)


@pytest.mark.parametrize("suffix", ["npy", "txt"])
@pytest.mark.parametrize("streamers", [1, 2, 5])
def test_each_streamer_reads_files_of_its_own(pattern: str, suffix: str, streamers: int) -> None:
    for index in range(streamers):
        with sharded_as(index, streamers):
            made = opened(pattern, suffix).shard_files()
            assert made.sharding is Sharding.FILE
            made = made.map(number) if suffix == "txt" else made
            expected = [v for file in range(index, FILES, streamers) for v in of_file(file)]
            assert flat(made.batch(4), index, streamers) == expected


@pytest.mark.parametrize("suffix", ["npy", "txt"])
def test_a_file_shard_goes_on_at_its_own_batch(pattern: str, suffix: str) -> None:
    with sharded_as(1, 2):
        made = opened(pattern, suffix).shard_files()
        made = (made.map(number) if suffix == "txt" else made).batch(2)
        whole = flat(made, 1, 2)
        # global batches 1, 3, 5, … are its own 0, 1, 2, …: at batch 7 it has given three
        assert flat(made, 7, 2) == whole[3 * 2 :]


def test_fewer_files_than_streamers(pattern: str) -> None:
    with (
        sharded_as(0, FILES + 1),
        pytest.raises(DataError, match=r"6 streamers need at least one file each.*got 5 files"),
    ):
        opened(pattern, "npy").shard_files()


@pytest.mark.parametrize("early", ["shuffle", "batch"])
def test_files_are_sharded_before_anything_else(pattern: str, early: str) -> None:
    made = opened(pattern, "npy")
    made = made.shuffle() if early == "shuffle" else made.batch(2)
    with pytest.raises(DataError, match="shard_files: must follow from_files"):
        made.shard_files()
    with pytest.raises(DataError, match="shard_files: must follow from_files"):
        Dataset.from_arrays(np.arange(3)).shard_files()


def test_files_are_sharded_and_interleaved_in_either_order(pattern: str) -> None:
    with sharded_as(0, 2):  # files 0, 2 and 4
        one = opened(pattern, "txt").shard_files().interleave(3).map(number).batch(3)
        other = opened(pattern, "txt").interleave(3).shard_files().map(number).batch(3)
        columns = zip(of_file(0), of_file(2), of_file(4), strict=True)
        expected = list(chain.from_iterable(columns))
        assert flat(one, 0, 2) == flat(other, 0, 2) == expected


def data(stream: bool) -> Dataset:
    made = Dataset.from_arrays(np.arange(20))
    return made.filter(lambda x: True) if stream else made


@pytest.mark.parametrize("stream", [False, True])
def test_a_shard_of_the_users_turns_sharding_by_batch_off(stream: bool) -> None:
    for index in range(3):
        with sharded_as(index, 3):
            mine, count = shard_info()
            made = data(stream).shard(count, mine).batch(2)
            assert made.sharding is Sharding.USER
            assert flat(made, index, 3) == list(range(index, 20, 3))
            assert flat(made, index + 6, 3) == list(range(index, 20, 3))[4:]


@pytest.mark.parametrize("stream", [False, True])
def test_a_shard_of_batches(stream: bool) -> None:
    with sharded_as(1, 2):
        assert flat(data(stream).batch(4).shard(2, 1), 1, 2) == [4, 5, 6, 7, 12, 13, 14, 15]


def test_a_shard_for_other_streamers_is_refused() -> None:
    made = data(False).shard(10, 0).batch(1)
    assert flat(made) == [0, 10]  # with one streamer it is a part of the data
    with pytest.raises(
        DataError, match=r"shard\(10, 0\) in input_fn does not match streamer 1 of 4.*shard_"
    ):
        made.batches(1, 4)
    both = data(False).shard(10, 0).shard(4, 1).batch(1)
    assert flat(both, 1, 4) == [10]


def test_sharding_by_batch_needs_nothing() -> None:
    assert data(False).batch(2).sharding is Sharding.BATCH


MISSING = [
    ("nowhere/part-*.npy", "nowhere/part-.*: no file matches"),
    ("nowhere/part-0.npy", "nowhere/part-0.npy: no such file"),
    ([], "at least one file is needed"),
]


@pytest.mark.parametrize(("paths", "message"), MISSING)
def test_files_that_are_not_there(paths: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset.from_files(paths)


def test_indexed_files_are_one_sequence(pattern: str) -> None:
    made = opened(pattern, "npy")
    assert made.indexable
    assert flat(made.batch(7)) == list(range(FILES * ROWS))
    assert made.batch(7).cardinality == 5
    order = flat(made.shuffle(2).batch(7))
    assert sorted(order) == list(range(FILES * ROWS)) != order
    assert flat(made.shuffle(2).batch(7), 3) == order[3 * 7 :]


def test_files_that_are_not_alike(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    np.save(tmp_path / "b.npy", np.zeros((3, 4)))
    with pytest.raises(DataError, match=r"b.npy has samples of float64 \[4\], .*a.npy of float64"):
        Dataset.from_files([tmp_path / "a.npy", tmp_path / "b.npy"])


def test_indexed_files_are_not_interleaved(pattern: str) -> None:
    with pytest.raises(DataError, match="interleave: must follow from_files of"):
        opened(pattern, "npy").interleave(2)
