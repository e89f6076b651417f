"""tf.train.Example messages, encoded by hand in protobuf's wire format.

Source: protobuf.dev, Encoding; tensorflow/core/example/feature.proto for the field numbers
"""

import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from tensorboardX.record_writer import RecordWriter

from csrun.data import DataError
from csrun.data.formats import Fixed, TFExample, Variable, tfexample

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    content = b""
    while value > 0x7F:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def bytes_list(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def float_list(*values: float) -> bytes:
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def int64_list(*values: int) -> bytes:
    return field(3, field(1, b"".join(map(varint, values))))


def unpacked_int64_list(*values: int) -> bytes:
    """Encoding of older writers: a tag for each value."""
    return field(3, b"".join(varint(1 << 3) + varint(value) for value in values))


def example(features: dict[str, bytes]) -> bytes:
    entries = (field(1, name.encode()) + field(2, value) for name, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def written(folder: Path, *messages: bytes) -> Path:
    path = folder / "x.tfrecord"
    path.unlink(missing_ok=True)
    writer = RecordWriter(str(path))
    for message in messages:
        writer.write(message)
    writer.close()
    return path


def read(path: Path, **features: Fixed | Variable) -> list[list[Any]]:
    return [[array.tolist() for array in sample] for sample in TFExample(features).samples(path)]


@examples(40)
@given(ids=st.lists(INT64, max_size=5), x=st.lists(FLOAT32, min_size=6, max_size=6), b=st.binary())
def test_what_was_encoded_by_hand_is_decoded(
    tmp_path: Path, ids: list[int], x: Sequence[float], b: bytes
) -> None:
    fields = {"ids": int64_list(*ids), "x": float_list(*x), "raw": bytes_list(b)}
    form = TFExample(
        {"raw": Fixed("bytes"), "x": Fixed("float32", (2, 3)), "ids": Variable("int64")}
    )
    ((raw, matrix, numbers),) = form.samples(written(tmp_path, example(fields)))
    assert bytes(raw) == b
    assert matrix.shape == (2, 3)
    assert matrix.ravel().tolist() == list(x)
    assert numbers.tolist() == ids
    assert (matrix.dtype, numbers.dtype) == (np.float32, np.int64)


def test_dtypes_defaults_and_older_writers(tmp_path: Path) -> None:
    path = written(tmp_path, example({"n": unpacked_int64_list(1, 0, 255)}), example({}))
    features = {"n": Fixed("uint8", (3,), default=[7, 8, 9]), "v": Variable("float16")}
    assert read(path, **features) == [[[1, 0, 255], []], [[7, 8, 9], []]]
    path = written(tmp_path, example({"n": int64_list(1, 0), "s": field(3, b"")}))
    features = {
        "n": Fixed("bool", (2,)),
        "s": Variable("int32"),
        "one": Fixed("float32", (2,), default=1.5),
        "raw": Fixed("bytes", default=b"\0a"),
    }
    assert read(path, **features) == [[[True, False], [], [1.5, 1.5], [0, 97]]]


FAULTS: dict[str, tuple[bytes, Fixed | Variable, str]] = {
    "missing": (example({}), Fixed("int8"), "must be in the record.* got none"),
    "kind": (example({"x": float_list(1)}), Fixed("int8"), "int64_list for int8, got float_list"),
    "count": (example({"x": int64_list(1, 2)}), Fixed("int8", (3,)), r"\[3\], got 2 values"),
    "range": (example({"x": int64_list(300)}), Variable("uint8"), "does not fit uint8"),
    "several": (example({"x": bytes_list(b"a", b"b")}), Fixed("bytes"), "got 2 values"),
}


@pytest.mark.parametrize(("message", "feature", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_by_record_and_feature(
    tmp_path: Path, message: bytes, feature: Fixed | Variable, text: str
) -> None:
    good = bytes_list(b"a") if feature.dtype == "bytes" else int64_list(1, *[2] * 2)
    shape = getattr(feature, "shape", ())
    first = example({"x": int64_list(1) if shape == () and feature.dtype != "bytes" else good})
    path = written(tmp_path, first, message)
    offset = len(first) + 16
    samples = TFExample({"x": feature}).samples(path)
    next(samples)
    with pytest.raises(DataError, match=text) as caught:
        next(samples)
    assert str(caught.value).startswith(f"{path}: record 1 at byte {offset}: feature x: ")


HOSTILE = {
    "no-message": b"\xff\xff\xff",
    "length-beyond-the-end": varint(1 << 3 | 2) + varint(1 << 40) + b"little",
    "cut": example({"x": float_list(1, 2)})[:-1],
    "name-that-is-no-text": field(1, field(1, field(1, b"\xff\xfe"))),
    "deep": b"\x0b" * 10_000,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_message_is_refused(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=r"record 0 at byte 0: not a tf\.train\.Example message"):
        read(path, x=Variable("float32"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TFExample({}), "features must name at least one, got none"),
        (lambda: TFExample({"x": "int8"}), "x must be a Fixed or a Variable, got int8"),
        (lambda: Fixed("text"), "dtype must be numeric, bool or bytes, got text"),
        (lambda: Fixed("int8", (-1,)), r"shape must not be negative, got \(-1,\)"),
        (lambda: Fixed("bytes", (2,)), "shape must be .. for bytes"),
        (lambda: Fixed("int8", (2,), [1, 2, 3]), r"default must be int8 of shape \[2\], got"),
        (lambda: Fixed("bytes", default="text"), "default must be bytes of shape"),
        (lambda: Variable("bytes"), "a list of bytes is not an array"),
        (lambda: TFExample({"x": Fixed("int8")}, "zip"), "compression must be gzip"),
    ],
)
def test_options_state_their_rules(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_a_missing_library_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tfexample.example_class.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(DataError, match=r"google.protobuf.*pip install 'csrun\[tfrecord\]'"):
        read(written(tmp_path, example({})), x=Variable("int8"))
