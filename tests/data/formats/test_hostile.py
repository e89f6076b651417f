"""Arbitrary file contents: samples, or a DataError that names the file, and no other exception."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from tensorboardX.record_writer import RecordWriter

from csrun.data import DataError
from csrun.data.formats import (
    Csv,
    Fixed,
    Format,
    Hdf5,
    Idx,
    IndexedFormat,
    Lines,
    Npy,
    TFExample,
    TFRecord,
    Tokens,
    Variable,
)

FORMATS: dict[str, Format] = {
    "x-idx1-ubyte": Idx(),
    "x-idx1-ubyte.gz": Idx(),
    "x.npy": Npy(),
    "x.npz": Npy(),
    "packed.npz": Npy(),
    "x.bin": Tokens(4),
    "x.txt": Lines(),
    "x.txt.gz": Lines(),
    "x.csv": Csv({"a": "int8", "b": "float32"}),
    "x.tfrecord": TFRecord(),
    "x.tfrecord.gz": TFRecord(),
    "example.tfrecord": TFExample({"a": Fixed("int8"), "b": Variable("float32")}),
    "x.h5": Hdf5(),
}
EXAMPLES = examples(40)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A valid file of each format."""
    folder = tmp_path_factory.mktemp("good")
    idx = b"\0\0\x08\x01\0\0\0\x05abcde"
    (folder / "x-idx1-ubyte").write_bytes(idx)
    (folder / "x-idx1-ubyte.gz").write_bytes(gzip.compress(idx))
    np.save(folder / "x.npy", np.arange(5.0))
    np.savez(folder / "x.npz", a=np.arange(5.0), b=np.arange(5))
    np.savez_compressed(folder / "packed.npz", a=np.arange(5.0), b=np.arange(5))
    np.arange(20, dtype=np.uint16).tofile(folder / "x.bin")
    (folder / "x.txt").write_text("one\ntwo\n")
    (folder / "x.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (folder / "x.csv").write_text("a,b\n1,2\n3,4\n")
    example = bytes.fromhex("0a0e0a0c0a0161120712051a030a0107")[:16]
    for name in ("x.tfrecord", "example.tfrecord"):
        writer = RecordWriter(str(folder / name))
        writer.write(example)
        writer.close()
    (folder / "x.tfrecord.gz").write_bytes(gzip.compress((folder / "x.tfrecord").read_bytes()))
    with pytest.importorskip("h5py").File(folder / "x.h5", "w") as file:
        file.create_dataset("a", data=np.arange(20), chunks=(4,), compression="gzip")
    return {name: (folder / name).read_bytes() for name in FORMATS}


def samples(form: Format, path: Path) -> Iterator[Any]:
    if isinstance(form, IndexedFormat):
        return (np.array(rows[np.arange(len(rows))]) for rows in form.arrays(path))
    return form.samples(path)


def read_or_refused(form: Format, path: Path) -> None:
    try:
        assert all(sample is not None for sample in samples(form, path))
    except DataError as error:
        named = str(path) in str(error)
        assert named


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_file_is_read(good: dict[str, bytes], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(good[name])
    form = TFRecord() if name == "example.tfrecord" else FORMATS[name]
    assert list(samples(form, tmp_path / name))


@pytest.mark.parametrize("name", FORMATS)
@EXAMPLES
@given(content=st.binary(max_size=200))
def test_noise_is_read_or_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    read_or_refused(FORMATS[name], tmp_path / name)


@pytest.mark.parametrize("name", FORMATS)
@EXAMPLES
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(
    good: dict[str, bytes], tmp_path: Path, name: str, data: st.DataObject
) -> None:
    content = bytearray(good[name])
    place = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=8))
    content[place : place + len(damage)] = damage
    cut = data.draw(st.integers(0, len(content)))
    (tmp_path / name).write_bytes(content if data.draw(st.booleans()) else content[:cut])
    read_or_refused(FORMATS[name], tmp_path / name)
