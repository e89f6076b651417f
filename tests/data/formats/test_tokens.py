"""Windows of token files, against slices written out by hand."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from csrun.data import DataError
from csrun.data.formats import Tokens


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
    with pytest.raises(DataError, match=r"cut\.bin: tokens of uint16 take a multiple of 2 bytes"):
        Tokens(4).arrays(path)
    with pytest.raises(DataError, match=r"none\.bin: cannot be opened: No such file"):
        Tokens(4).arrays(tmp_path / "none.bin")
