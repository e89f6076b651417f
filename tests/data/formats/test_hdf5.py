"""Rows of HDF5 files written by h5py, in any order; reads of whole arrays are refused."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from csrun.data import DataError, Dataset
from csrun.data.formats import Hdf5, StoredRows
from csrun.data.formats.hdf5 import Hdf5Rows

h5py = pytest.importorskip("h5py")

FEATURES = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=FEATURES, chunks=(4, 3), compression="gzip")
        file["labels"] = np.arange(20)
        file["group/inner"] = np.arange(5)
        file["number"] = 1.0
        file["texts"] = ["a", "b"]
    return path


@examples(40)
@given(numbers=st.lists(st.integers(0, 19), max_size=30))
def test_rows_come_in_the_order_that_was_asked_for(path: Path, numbers: list[int]) -> None:
    features, labels = Hdf5(("features", "labels")).arrays(path)
    rows = np.array(numbers, np.int64)
    np.testing.assert_array_equal(features[rows], FEATURES[rows])
    assert labels[rows].tolist() == numbers


def test_rows_know_their_shape_and_are_no_arrays(path: Path) -> None:
    (features,) = Hdf5(("features",)).arrays(path)
    assert isinstance(features, StoredRows)
    assert (features.shape, features.dtype, len(features)) == ((20, 3), np.float32, 20)
    assert features[7].tolist() == FEATURES[7].tolist()
    with pytest.raises(TypeError, match="read by rows, not as a whole"):
        np.asarray(features)
    with pytest.raises(IndexError, match=r"features has rows 0\.\.19"):
        features[np.array([3, 20])]


def test_all_at_the_root_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", track_order=True) as file:
        file["x"], file["group/other"], file["a"] = np.zeros((2, 5)), np.zeros(9), np.zeros(2)
    assert [rows.shape for rows in Hdf5().arrays(path)] == [(2, 5), (2,)]


def test_a_huge_data_set_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 40, 1 << 10), "f4", chunks=(1, 1 << 10))[1 << 39] = 3
    (rows,) = Hdf5().arrays(path)
    assert rows[np.array([1 << 39, 5])].sum(axis=1).tolist() == [3 * 1024, 0]


def test_a_forked_process_opens_the_file_for_itself(path: Path) -> None:
    (features,) = Hdf5(("features",)).arrays(path)
    assert features[0].tolist() == [0, 1, 2]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, bytes(features[np.array([19, 2])].astype(np.uint8)))
        os._exit(0)
    os.waitpid(child, 0)
    assert list(os.read(reading, 100)) == [57, 58, 59, 6, 7, 8]
    os.close(reading)
    os.close(writing)
    assert features[1].tolist() == [3, 4, 5]


def test_samples_of_several_files_are_read_a_batch_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(10 * number, 10 * number + 10)
    reads: list[int] = []
    read = Hdf5Rows.__getitem__
    monkeypatch.setattr(Hdf5Rows, "__getitem__", lambda *a: reads.append(1) or read(*a))
    made = Dataset.from_files(str(tmp_path / "*.h5")).shuffle(2).map(lambda x: x).batch(30)
    [(batch,)] = made
    order = next(Dataset.from_arrays(np.arange(30)).shuffle(2).batch(30).batches())[0]
    assert batch.tolist() == order.tolist()
    assert len(reads) == 3


def test_what_cannot_be_read_by_rows_is_refused(path: Path, tmp_path: Path) -> None:
    for name, message in {
        "absent": "must hold absent, got",
        "group": "group: must be a data set, got Group",
        "number": r"number: samples need a first axis, got shape \(\)",
        "texts": "texts: must hold numbers, got object",
    }.items():
        with pytest.raises(DataError, match=message) as caught:
            Hdf5((name,)).arrays(path)
        assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(DataError, match="names must be a tuple, got 'x'"):
        Hdf5("x")  # type: ignore[arg-type]
    (tmp_path / "text.h5").write_text("no such file")
    with pytest.raises(DataError, match=r"text\.h5: not a readable HDF5 file"):
        Hdf5().arrays(tmp_path / "text.h5")
    with pytest.raises(DataError, match=r"none\.h5: not a readable HDF5 file: .*No such file"):
        Hdf5().arrays(tmp_path / "none.h5")
    h5py.File(tmp_path / "empty.h5", "w").close()
    with pytest.raises(DataError, match="must contain a data set at its root"):
        Hdf5().arrays(tmp_path / "empty.h5")


def test_a_damaged_chunk_is_named(path: Path) -> None:
    with h5py.File(path) as file:
        chunk = file["features"].id.get_chunk_info(2)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    (features,) = Hdf5(("features",)).arrays(path)
    assert features[3].tolist() == FEATURES[3].tolist()
    with pytest.raises(DataError, match=r"x\.h5: features: not a readable HDF5 file"):
        features[np.array([9, 3])]


def test_a_missing_library_is_named_with_its_remedy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"Hdf5: needs h5py.*pip install 'csrun\[hdf5\]'"):
        Hdf5().arrays(path)
