"""CSV files written by the standard library: dtypes of columns, and named errors."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from csrun.data import DataError
from csrun.data.formats import Csv

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=9)
RECORDS = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.floats(width=32, allow_nan=False), TEXT),
    max_size=6,
)


@examples(40)
@given(records=RECORDS, delimiter=st.sampled_from([",", ";", "\t"]))
def test_what_was_written_is_read(
    tmp_path: Path, records: list[tuple[int, float, str]], delimiter: str
) -> None:
    path = tmp_path / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([("n", "x", "text"), *records])
    columns = {"text": "str", "n": "int32", "x": "float32"}
    read = list(Csv(columns, delimiter=delimiter).samples(path))
    assert [(int(n), float(x), bytes(text).decode()) for text, n, x in read] == records
    assert all(n.dtype == np.int32 and x.dtype == np.float32 for _, n, x in read)


def written(folder: Path, text: str) -> Path:
    path = folder / "x.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def samples(path: Path, *arguments: Any, **options: Any) -> list[list[Any]]:
    return [[a.tolist() for a in s] for s in Csv(*arguments, **options).samples(path)]


def test_columns_in_a_tuple_are_a_vector(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label\r\n1,2.5,3\r\n\r\n4,5,6\r\n")
    columns = {("b", "a"): "float32", "label": "int8"}
    assert samples(path, columns) == [[[2.5, 1.0], 3], [[5.0, 4.0], 6]]
    assert samples(path) == [[[1.0, 2.5, 3.0]], [[4.0, 5.0, 6.0]]]


def test_without_a_header_columns_have_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "7,0,255\n2,1,3\n")
    columns = {range(1, 3): "uint8", 0: "int32"}
    assert samples(path, columns, header=False) == [[[0, 255], 7], [[1, 3], 2]]
    assert samples(written(tmp_path, ""), columns, header=False) == []


def test_quoted_line_ends_belong_to_the_field(tmp_path: Path) -> None:
    path = written(tmp_path, '\ufefft,n\n"two\nlines",1\n')
    ((text, n),) = Csv({"t": "str", "n": "int8"}).samples(path)
    assert (bytes(text), int(n)) == (b"two\nlines", 1)


FAULTS = {
    "fields": ("a,b\n1,2\n3\n", ":3: must have 2 fields, got 1"),
    "word": ("a,b\n1,2\n3,four\n", ":3: column b must be int8, got 'four'"),
    "range": ("a,b\n1,2\n3,300\n", ":3: column b must be int8, got '300'"),
    "empty": ("a,b\n,2\n", ":2: column a must be int8, got ''"),
    "absent": ("a,c\n1,2\n", r":1: must have a column b, got \['a', 'c'\]"),
    "double": ("a,b,a\n1,2,3\n", r":1: names must differ, got \['a', 'b', 'a'\]"),
    "quote": ('a,b\n1,"2"x\n', ":2: not a CSV record: ',' expected after '\"'"),
    "open-quote": ('a,b\n1,"2\n', ":2: not a CSV record: unexpected end of data"),
    "huge-field": ('a,b\n1,"' + "2" * 200_000 + "\n", ":2: not a CSV record: field larger"),
}


@pytest.mark.parametrize(("text", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_by_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        samples(path, {("a", "b"): "int8"})
    assert str(caught.value).startswith(str(path))


def test_an_encoding_error_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"a\n1\n\xff\n")
    with pytest.raises(DataError, match=r"x\.csv:3: byte 4 of the file, 0xff"):
        samples(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {}}, "columns must name at least one column, got none"),
        ({"columns": {0: "int8"}}, "columns must be str with a header, got 0"),
        ({"columns": {(): "int8"}}, r"columns must be str with a header, got \(\)"),
        (
            {"columns": {"a": "int8"}, "header": False},
            "columns must be int without a header, got 'a'",
        ),
        ({"columns": {"a": "bool"}}, "dtype of a must be integer, float or str, got bool"),
        ({"columns": {"a": "number"}}, "or str, got number"),
        ({"columns": {("a", "b"): "str"}}, "a vector must be numeric, not str"),
        ({"delimiter": ", "}, "delimiter must be one character, got ', '"),
        ({"encoding": "utf-16"}, "Csv: encoding must be a text encoding"),
    ],
)
def test_options_state_their_rules(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Csv(**options)
