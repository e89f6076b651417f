"""Windows of token files against slices by hand; the header against `struct`."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from csrun.data import DataError
from csrun.data.formats import Tokens, write_tokens


@examples(50)
@given(
    ids=st.lists(st.integers(0, 2**16 - 1), min_size=2, max_size=60),
    length=st.integers(1, 20),
    stride=st.none() | st.integers(1, 30),
)
def test_a_sample_is_a_window_and_the_one_after(
    tmp_path: Path, ids: list[int], length: int, stride: int | None
) -> None:
    path = tmp_path / "train.bin"
    np.array(ids, np.uint16).tofile(path)
    starts = range(0, len(ids) - length, stride or length)
    if not starts:
        with pytest.raises(DataError, match=f"needs {length + 1} tokens, got {len(ids)}"):
            Tokens(length, stride=stride).arrays(path)
        return
    inputs, targets = Tokens(length, stride=stride).arrays(path)
    assert inputs[:].tolist() == [ids[s : s + length] for s in starts]
    assert targets[:].tolist() == [ids[s + 1 : s + 1 + length] for s in starts]


def test_nothing_is_copied_of_a_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(1 << 41)  # 2 TiB, sparse
        file.seek(2 * 5000)
        file.write(np.array([7, 8], np.uint16).tobytes())
    inputs, targets = Tokens(length=1000, stride=10).arrays(path)
    assert len(inputs) == ((1 << 40) - 1001) // 10 + 1
    assert inputs[np.array([500, 0, 499])][:, :12].sum(axis=1).tolist() == [15, 0, 15]
    assert targets[500, 0] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "Tokens: length must be positive, got 0"),
        ({"length": 4, "stride": 0}, "Tokens: stride must be positive, got 0"),
        ({"length": 4, "dtype": "float32"}, "dtype must be of integers, got float32"),
        ({"length": 4, "dtype": "token"}, "dtype must be of integers, got token"),
    ],
)
def test_options_state_their_rules(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tokens(**options)  # type: ignore[arg-type]


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(bytes(101))
    with pytest.raises(
        DataError, match=r"cut\.bin: a file of uint16 tokens must have a multiple of 2 bytes"
    ):
        Tokens(4).arrays(path)
    with pytest.raises(DataError, match=r"none\.bin: cannot be opened: No such file"):
        Tokens(4).arrays(tmp_path / "none.bin")


def headed(ids: list[int], item: str = "H", vocabulary: int = 100) -> bytes:
    fields = struct.pack("<HHIQI", 1, struct.calcsize(item), vocabulary, len(ids), 0)
    return b"CSRUNTOK" + fields + struct.pack(f"<I{len(ids)}{item}", zlib.crc32(fields), *ids)


@pytest.mark.parametrize(("item", "vocabulary"), [("H", 1 << 16), ("I", (1 << 16) + 1)])
def test_a_file_is_written_piece_by_piece_under_its_header(
    tmp_path: Path, item: str, vocabulary: int
) -> None:
    path = tmp_path / "train.bin"
    count = write_tokens(path, iter([[1, 2, 3], [], np.array([65535])]), vocabulary)
    assert count == 4
    assert path.read_bytes() == headed([1, 2, 3, 65535], item, vocabulary)
    inputs, targets = Tokens(3).arrays(path)
    assert (inputs.tolist(), targets.tolist()) == ([[1, 2, 3]], [[2, 3, 65535]])
    assert inputs.dtype == np.dtype(item)
    assert list(tmp_path.iterdir()) == [path]


def test_an_id_outside_the_vocabulary_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(b"what was there")
    for wrong in (100, -1):
        with pytest.raises(DataError, match=rf"token 3 must be in 0\.\.99, got {wrong}"):
            write_tokens(path, [[1, 2], [3, wrong]], 100)
    with pytest.raises(DataError, match="token ids must be integers, got float64"):
        write_tokens(path, [[0.5]], 100)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"what was there"]


@pytest.mark.parametrize("byte", range(28))
def test_a_damaged_header_is_refused(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "train.bin"
    data = bytearray(headed(list(range(9))))
    data[byte] ^= 16
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train\.bin: its header is damaged"):
        Tokens(4).arrays(path)


def test_what_a_header_says_must_hold(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    whole = headed(list(range(9)))
    for data in (whole[:-1], whole[:-8], whole + b"\0\0"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"9 tokens .* take 50 bytes, got {len(data)}"):
            Tokens(4).arrays(path)
    path.write_bytes(whole[:20])
    with pytest.raises(DataError, match="a header must have 32 bytes, got 20"):
        Tokens(4).arrays(path)
    path.write_bytes(whole)
    with pytest.raises(DataError, match="its header says uint16, got uint32"):
        Tokens(4, dtype="uint32").arrays(path)
    with pytest.raises(DataError, match="vocabulary of 99, got a file for a vocabulary of 100"):
        Tokens(4, vocabulary=99).arrays(path)
    assert len(Tokens(4, vocabulary=100).arrays(path)[0]) == 2
    for version, item_bytes, rule in ((2, 2, "must be of version 1"), (1, 3, "2 or 4 bytes")):
        fields = struct.pack("<HHIQI", version, item_bytes, 100, 9, 0)
        path.write_bytes(b"CSRUNTOK" + fields + struct.pack("<I", zlib.crc32(fields)) + whole[32:])
        with pytest.raises(DataError, match=rule):
            Tokens(4).arrays(path)
