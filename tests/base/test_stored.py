"""Stored files are read as they were written, or refused as damaged."""

import json
import os
import re
import zlib
from pathlib import Path

import msgspec
import pytest

from csrun.base import stored
from csrun.base.errors import CsrunError, brief


class Point(msgspec.Struct, frozen=True):
    name: str
    steps: tuple[int, ...] = ()


POINT = Point("here", (1, 2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stored.write(tmp_path / "point.json", POINT)
    return tmp_path / "point.json"


def read(path: Path) -> Point:
    return stored.read(path, Point, "the point", "draw it again")


def test_what_was_written_is_read_by_csrun_and_by_any_reader_of_json(path: Path) -> None:
    assert read(path) == POINT
    assert stored.read_owned(path, Point, "the point") == stored.OwnedValue(POINT, os.getuid())
    checksum = f"{zlib.crc32(path.read_bytes().partition(b',')[2]):08x}"
    assert json.loads(path.read_text()) == {"crc32": checksum, "name": "here", "steps": [1, 2]}


def test_no_flipped_bit_gives_another_value(path: Path) -> None:
    content, said = path.read_bytes(), set()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert read(path) == POINT
        except stored.DamagedError as error:
            said.add((str(error).partition(" damaged: ")[0], str(error).rpartition("; ")[2]))
    assert said == {(f"{path}: the point is", "draw it again")}


@pytest.mark.parametrize(
    "plain", [{"name": 5}, {}, {"name": "x", "steps": [0.5]}, {"name": "x", "steps": "y"}]
)
def test_what_another_program_wrote_is_damaged_though_its_checksum_is_right(
    path: Path, plain: dict[str, object]
) -> None:
    fields = msgspec.json.encode(plain | {"more": 0})[1:]
    path.write_bytes(b'{"crc32": "%08x",%b' % (zlib.crc32(fields), fields))
    with pytest.raises(stored.DamagedError):
        read(path)


def test_one_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "point.json")


def put_folder(path: Path) -> None:
    path.mkdir()


def put_loop(path: Path) -> None:
    path.symlink_to(path.name)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_too_much(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("put", [put_folder, put_loop, os.mkfifo, put_device, put_too_much])
def test_what_is_no_small_file_is_one_line(path: Path, put) -> None:
    path.unlink()
    put(path)
    with pytest.raises(CsrunError, match=r"point.json: the point cannot be read: .*; draw it"):
        read(path)


def test_a_link_is_followed_unless_whose_file_it_is_matters(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert read(tmp_path / "link") == POINT
    with pytest.raises(CsrunError, match="symbolic link"):
        stored.read_owned(tmp_path / "link", Point, "the point")


def test_a_message_without_end_is_cut() -> None:
    assert str(CsrunError("x" * 100_000)) == "x" * 200 + "… (99,800 characters more)"
    assert str(CsrunError(f"a: {'x' * 5000}; b")) == f"a: {'x' * 200}… (4,801 characters more) b"
    assert len(str(CsrunError("word " * 50_000))) < 5000
    assert brief("a line of usual length") == "a line of usual length"


def test_a_long_message_keeps_its_end_and_says_once_how_much_is_missing() -> None:
    lines = "\n".join(f"  line {number}" for number in range(9000))
    message = f"srun ended:\n{lines}\n  THE CAUSE"
    inner = str(CsrunError(message))
    outer = str(CsrunError(f"job 7: {CsrunError(f'node1: {inner}')}; start it again"))
    for text, added in ((inner, ""), (outer, "job 7: node1: ; start it again")):
        assert "THE CAUSE" in text
        assert len(text) <= 4000
        (missing,) = re.findall(r"… \(([\d,]+) characters more\) …", text)
        kept = len(re.sub(r"… .* …", "", text))
        assert kept + int(missing.replace(",", "")) == len(message) + len(added)
    for text in (inner, outer, "word " * 50_000, "x" * 10_000, f"a {'x' * 2000} b {'y' * 5000}"):
        assert brief(brief(text)) == brief(text)
