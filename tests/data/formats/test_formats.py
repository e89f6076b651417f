"""Formats by file name."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from csrun.data import DataError, formats


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("train-images-idx3-ubyte", formats.Idx()),
        ("train-labels-idx1-ubyte.gz", formats.Idx()),
        ("t10k-images.idx3-ubyte", formats.Idx()),
        ("x.npy", formats.Npy()),
        ("x.npz", formats.Npy()),
        ("book.txt", formats.Lines()),
        ("book.txt.gz", formats.Lines()),
        ("x.csv", formats.Csv()),
        ("part-00001-of-00002.tfrecord", formats.TFRecord()),
        ("x.tfrecords.gz", formats.TFRecord()),
        ("x.h5", formats.Hdf5()),
        ("x.hdf5", formats.Hdf5()),
    ],
)
def test_a_name_tells_the_format(name: str, form: object) -> None:
    assert formats.of(Path("folder.npy") / name) == form
    assert formats.of(f"/folder/{name}") == form


def test_a_name_that_does_not_tell_is_refused_with_what_to_give() -> None:
    with pytest.raises(DataError, match=r"train\.bin: .* formats\.Tokens\(length=\.\.\.\)"):
        formats.of("train.bin")
    with pytest.raises(DataError, match=r"data/xnpy: .* pass format=, one of csrun\.data\.formats"):
        formats.of("data/xnpy")


def test_an_idx_file_is_an_array(tmp_path: Path) -> None:
    path = tmp_path / "x-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc"))
    (array,) = formats.Idx().arrays(path)
    np.testing.assert_array_equal(array, np.frombuffer(b"abc", np.uint8))
    path.write_bytes(gzip.compress(b"\0\0\x08\x00a"))
    with pytest.raises(DataError, match="samples need a first axis"):
        formats.Idx().arrays(path)
