"""TFRecord files written by tensorboardX, intact and damaged."""

import gzip
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from tensorboardX.record_writer import RecordWriter, masked_crc32c

from csrun.data import DataError
from csrun.data.formats import TFRecord

EXAMPLES = examples(40)


def written(path: Path, records: list[bytes]) -> Path:
    writer = RecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()
    return path


def read(path: Path, compression: str | None = None) -> list[bytes]:
    return [bytes(record) for (record,) in TFRecord(compression).samples(path)]


@EXAMPLES
@given(records=st.lists(st.binary(max_size=50), max_size=6))
def test_what_another_writer_wrote_is_read(tmp_path: Path, records: list[bytes]) -> None:
    path = written(tmp_path / "x.tfrecord", records)
    assert read(path) == records
    packed = tmp_path / "x.tfrecord.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed) == records
    packed.rename(path)
    assert read(path, "gzip") == records


def test_a_record_larger_than_a_piece_is_whole(tmp_path: Path) -> None:
    record = bytes(range(256)) * (5 << 12)
    assert read(written(tmp_path / "x.tfrecord", [record, b"next"])) == [record, b"next"]


@EXAMPLES
@given(data=st.data())
def test_a_changed_byte_never_goes_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    records = [b"first", b"second record", b""]
    path = written(tmp_path / "x.tfrecord", records)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    offset = max(begin for begin in (0, 21, 50) if begin <= place)  # 16 bytes around each record
    with pytest.raises(DataError, match=rf"x\.tfrecord: record \d at byte {offset}: the checksum"):
        read(path)


@EXAMPLES
@given(cut=st.integers(1, 20))
def test_a_cut_file_gives_its_whole_records_and_says_where(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "x.tfrecord", [b"first", b"second"])
    path.write_bytes(path.read_bytes()[:-cut])
    samples = TFRecord().samples(path)
    assert bytes(next(samples)[0]) == b"first"
    with pytest.raises(DataError, match=r"x\.tfrecord: record 1 at byte 21: .*truncated"):
        next(samples)


def test_a_huge_length_is_not_allocated(tmp_path: Path) -> None:
    head = struct.pack("<Q", 1 << 62)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(head + struct.pack("<I", masked_crc32c(head)) + b"little")
    tracemalloc.start()
    with pytest.raises(
        DataError, match=f"must have {1 << 62} bytes and a checksum.*the file is truncated"
    ):
        read(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 24


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match=r"damaged, compressed \("):
        read(path)
    with pytest.raises(DataError, match="compression must be gzip, none or None, got zip"):
        TFRecord("zip")


def test_a_missing_library_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "x.tfrecord", [b"first"])
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(DataError, match=r"google_crc32c.*pip install 'csrun\[tfrecord\]'"):
        read(path)
