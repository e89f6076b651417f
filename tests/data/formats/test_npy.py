""".npy and .npz files written by NumPy are memory-mapped; damaged ones are refused by name."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.examples import examples

from csrun.data import DataError
from csrun.data.formats import Npy

DTYPES = npst.integer_dtypes(endianness="=") | npst.floating_dtypes(endianness="=")
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(max_dims=3))
EXAMPLES = examples(30)


@EXAMPLES
@given(array=ARRAYS, fortran=st.booleans())
def test_a_saved_array_is_mapped_as_it_was(
    tmp_path: Path, array: np.ndarray, fortran: bool
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(array) if fortran else array)
    (read,) = Npy().arrays(path)
    assert isinstance(read, np.memmap)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@EXAMPLES
@given(features=ARRAYS, labels=ARRAYS, packed=st.booleans())
def test_an_archive_gives_its_arrays_by_name(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray, packed: bool
) -> None:
    path = tmp_path / "x.npz"
    save = np.savez_compressed if packed else np.savez
    save(path, features=features, labels=labels)
    for expected, read in zip((features, labels), Npy().arrays(path), strict=True):
        assert isinstance(read, np.memmap) is not packed
        np.testing.assert_array_equal(read, expected)
    (read,) = Npy(names=("labels",)).arrays(path)
    np.testing.assert_array_equal(read, labels)


def test_arrays_without_samples_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.empty((0, 3)))
    assert Npy().arrays(tmp_path / "x.npy")[0].shape == (0, 3)


def npy(shape: str, content: bytes = b"", dtype: str = "<f8") -> bytes:
    """Bytes of a .npy file, written by the format's description."""
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + content


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


BROKEN = {
    "empty": ("x.npy", b"", "not a readable .npy file"),
    "magic": ("x.npy", b"\x89PNG0123456789", "not a readable .npy file: the magic string"),
    "version": ("x.npy", b"\x93NUMPY\x09\x00", r"version must be 1\.0 or 2\.0, got \(9, 0\)"),
    "cut": ("x.npy", npy("(3,)", bytes(23)), r"shape \[3\] of float64 needs \d+ bytes, got \d+"),
    "huge": ("x.npy", npy("(1 << 60,)".replace("1 << 60", str(1 << 60))), "is it truncated"),
    "negative": ("x.npy", npy("(-2, -1)", bytes(16)), "needs no such bytes"),
    "no-literal": ("x.npy", npy("(3,)[").replace(b"}", b"("), "not a readable .npy file"),
    "code": ("x.npy", npy("__import__('os')"), "not a readable .npy file"),
    "pickle": (
        "x.npy",
        npy("(1,)", b"cos\nsystem\n", "|O"),
        "must hold numbers, got object",
    ),
    "nothing": ("x.npy", npy("(3,)", b"", "|V0"), "must hold numbers"),
    "huge-member": ("x.npz", zipped(npy(f"({1 << 50},)")), r"x\.npy: shape .* is it truncated"),
    "no-zip": ("x.npz", b"PK\x03\x04", r"not a readable \.npz file"),
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused_by_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        Npy().arrays(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_damaged_packed_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000))
    content = bytearray(path.read_bytes())
    content[300:400] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz: .*"):
        Npy().arrays(path)


def test_names_are_checked(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=np.zeros(2))
    np.save(tmp_path / "x.npy", np.zeros(2))
    with pytest.raises(DataError, match=r"x\.npz: must hold labels, got \['features'\]"):
        Npy(("labels",)).arrays(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"x\.npy: only a \.npz file has names"):
        Npy(("labels",)).arrays(tmp_path / "x.npy")
    with pytest.raises(DataError, match="names must be a tuple, got 'labels'"):
        Npy("labels")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"none\.npy: cannot be opened: No such file"):
        Npy().arrays(tmp_path / "none.npy")


def test_a_member_that_would_lie_beyond_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    content = bytearray(zipped(npy("(3,)", bytes(24))))
    content[28:30] = b"\xff\xff"  # the length of the extra field, as the member itself says it
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz: "):
        Npy().arrays(path)
