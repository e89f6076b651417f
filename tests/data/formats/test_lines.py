"""Lines of text files as bytes."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from csrun.data import DataError
from csrun.data.formats import Lines, lines

WITHOUT_ENDS = st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff")
TEXTS = st.lists(st.text(WITHOUT_ENDS, max_size=20), max_size=8)


def read(path: Path, form: Lines | None = None) -> list[str]:
    return [bytes(line).decode() for (line,) in (form or Lines()).samples(path)]


@examples(40)
@given(texts=TEXTS, end=st.sampled_from(["\n", "\r\n"]), packed=st.booleans())
def test_what_was_written_is_read(tmp_path: Path, texts: list[str], end: str, packed: bool) -> None:
    path = tmp_path / ("x.txt.gz" if packed else "x.txt")
    content = "".join(text + end for text in texts).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    assert read(path) == texts


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffein\n\nzwei".encode())
    assert read(path) == ["ein", "", "zwei"]


def test_any_encoding_becomes_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("früh\n".encode("latin-1"))
    ((line,),) = Lines(encoding="latin-1").samples(path)
    assert line.tolist() == [ord("f"), ord("r"), 0xC3, 0xBC, ord("h")]
    with pytest.raises(DataError, match=r"x\.txt:1: byte 2 of the file, 0xfc, is not utf-8"):
        read(path)


def test_an_encoding_error_is_named_by_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"good\n" * 3 + b"ba\xffd\n")
    with pytest.raises(DataError, match=r"x\.txt:4: byte 17 of the file, 0xff, is not utf-8"):
        read(path)


@pytest.mark.parametrize("encoding", ["utf-16", "no-such", "base64", "utf-8-sig"])
def test_an_encoding_must_keep_line_ends(encoding: str) -> None:
    with pytest.raises(
        DataError, match=f"must be a text encoding that extends ASCII, got {encoding}"
    ):
        Lines(encoding=encoding)


def test_broken_files_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"line\n" * 1000)[:-10])
    with pytest.raises(DataError, match=r"cut\.txt\.gz: byte \d+: not a readable gzip file"):
        read(cut)
    plain = tmp_path / "plain.txt.gz"
    plain.write_bytes(b"line\n")
    with pytest.raises(DataError, match="not a readable gzip file: Not a gzipped"):
        read(plain)
    with pytest.raises(DataError, match=r"none\.txt: cannot be opened: No such file"):
        read(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot be opened: Is a directory"):
        read(tmp_path)


def test_a_line_that_never_ends_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    path = tmp_path / "x.txt"
    path.write_bytes(b"short\n" + bytes(1000))
    with pytest.raises(DataError, match=r"x\.txt:2: a line must have at most 100 bytes"):
        read(path)
