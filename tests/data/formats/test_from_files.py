"""Data sets from files of each format: shuffled or sequential, by several streamers, in batches."""

import gzip
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.record_writer import RecordWriter

from csrun.data import Batch, DataError, Dataset, formats

SAMPLES = 23
FEATURES = np.arange(SAMPLES * 3, dtype=np.float32).reshape(SAMPLES, 3)
LABELS = np.arange(SAMPLES, dtype=np.int32)


def write_npz(path: Path, rows: slice) -> None:
    np.savez(path, x=FEATURES[rows], y=LABELS[rows])


def write_packed_npz(path: Path, rows: slice) -> None:
    np.savez_compressed(path, x=FEATURES[rows], y=LABELS[rows])


def write_hdf5(path: Path, rows: slice) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("x", data=FEATURES[rows], chunks=(1, 3), compression="gzip")
        file["y"] = LABELS[rows]


def write_csv(path: Path, rows: slice) -> None:
    records = zip(LABELS[rows], FEATURES[rows], strict=True)
    lines = (f"{y},{a},{b},{c}\n" for y, (a, b, c) in records)
    path.write_text("y,a,b,c\n" + "".join(lines))


def write_tfrecord(path: Path, rows: slice) -> None:
    writer = RecordWriter(str(path))
    for x, y in zip(FEATURES[rows], LABELS[rows], strict=True):
        writer.write(x.tobytes() + y.tobytes())
    writer.close()


def decode(record: np.ndarray) -> Batch:
    return record[:12].view(np.float32), record[12:].view(np.int32)[0]


INDEXED = {"x.npz": write_npz, "packed.npz": write_packed_npz, "x.h5": write_hdf5}
CSV = formats.Csv({("a", "b", "c"): "float32", "y": "int32"})


@pytest.fixture(params=INDEXED)
def pattern(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Pattern of three files, the last one with a single sample."""
    name, write = request.param, INDEXED[request.param]
    for number, rows in enumerate((slice(10), slice(10, 22), slice(22, 23))):
        write(tmp_path / f"{number}-{name}", rows)
    return tmp_path / f"*-{name}"


def rows_of(batches: Iterator[Batch]) -> list[int]:
    rows = []
    for features, labels in batches:
        np.testing.assert_array_equal(features, FEATURES[labels])
        assert (features.dtype, labels.dtype) == (np.float32, np.int32)
        rows += labels.tolist()
    return rows


def test_files_of_arrays_are_one_indexable_data_set(pattern: Path) -> None:
    indexed = Dataset.from_files(pattern)
    assert indexed.indexable
    assert rows_of(indexed.batch(7).batches()) == list(range(SAMPLES))
    shuffled = rows_of(indexed.shuffle(3).batch(7).batches())
    assert sorted(shuffled) == list(range(SAMPLES)) != shuffled


def test_streamers_share_files_of_arrays_in_turn(pattern: Path) -> None:
    chain = Dataset.from_files(pattern).shuffle(5).batch(4)
    whole = list(chain.batches())
    for streamer in range(3):
        for got, expected in zip(chain.batches(streamer, 3), whole[streamer::3], strict=True):
            np.testing.assert_array_equal(got[0], expected[0])


def test_a_map_of_samples_sees_rows_of_files(pattern: Path) -> None:
    chain = Dataset.from_files(pattern).shuffle(1).map(lambda x, y: (x * 2, y)).batch(5)
    for features, labels in chain:
        np.testing.assert_array_equal(features, FEATURES[labels] * 2)


@pytest.mark.parametrize("files", [1, 3])
def test_records_come_in_turn(tmp_path: Path, files: int) -> None:
    for number in range(files):
        rows = slice(number * SAMPLES // files, (number + 1) * SAMPLES // files)
        write_csv(tmp_path / f"{number}.csv", rows)
        write_tfrecord(tmp_path / f"{number}.tfrecord", rows)
    chains = {
        "csv": Dataset.from_files(tmp_path / "*.csv", CSV),
        "tfrecord": Dataset.from_files(str(tmp_path / "*.tfrecord")).map(decode),
    }
    for chain in chains.values():
        assert not chain.indexable
        assert rows_of(chain.batch(5).batches()) == list(range(SAMPLES))
        shuffled = rows_of(chain.shuffle(2, window=6).repeat(2).batch(5).batches())
        assert sorted(shuffled) == sorted([*range(SAMPLES)] * 2)


def test_lines_are_batched_as_padded_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"ab\n\nabc\n"))
    (batch,) = next(
        Dataset.from_files(tmp_path / "a.txt.gz").batch(3, padded_shapes=[(4,)]).batches()
    )
    assert batch.tolist() == [[97, 98, 0, 0], [0, 0, 0, 0], [97, 98, 99, 0]]


def test_windows_of_tokens_are_shuffled(tmp_path: Path) -> None:
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "train.bin")
    tokens = formats.Tokens(length=8, stride=4)
    chain = Dataset.from_files(tmp_path / "train.bin", tokens).shuffle(1).batch(6)
    starts = []
    for inputs, targets in chain:
        np.testing.assert_array_equal(inputs + 1, targets)
        np.testing.assert_array_equal(inputs - inputs[:, :1], [range(8)] * len(inputs))
        starts += inputs[:, 0].tolist()
    assert sorted(starts) == list(range(0, 93, 4))


def test_idx_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(range(5)))
    assert [b[0].tolist() for b in Dataset.from_files(path).batch(3)] == [[0, 1, 2], [3, 4]]


def test_arrays_of_a_file_must_be_equally_long(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=FEATURES, y=LABELS[1:])
    with pytest.raises(
        DataError, match=r"from_files: .*x\.npz: arrays must have equal lengths, got"
    ):
        Dataset.from_files(tmp_path / "x.npz")
    np.save(tmp_path / "x.npy", np.float32(1))
    with pytest.raises(DataError, match=r"x\.npy: arrays must have a first axis, of samples"):
        Dataset.from_files(tmp_path / "x.npy")


def test_a_fault_in_the_third_file_is_named_when_it_is_reached(tmp_path: Path) -> None:
    for number in range(3):
        write_tfrecord(tmp_path / f"{number}.tfrecord", slice(4))
    path = tmp_path / "2.tfrecord"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    chain = Dataset.from_files(tmp_path / "*.tfrecord").map(decode).batch(2)
    batches = chain.batches()
    for _ in range(4):
        next(batches)
    with pytest.raises(DataError, match=r"2\.tfrecord: record 1 at byte 32: the checksum of its"):
        next(batches)


MANY = """
import resource, sys
from csrun.data import Dataset

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
((batch,),) = Dataset.from_files(sys.argv[1]).batch(1000)
print(batch.tolist() == list(range(200)))
"""


def test_more_files_than_descriptors_are_mapped(tmp_path: Path) -> None:
    for number in range(200):
        np.save(tmp_path / f"{number:03}.npy", np.array([number]))
    command = [sys.executable, "-c", MANY, str(tmp_path / "*.npy")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
