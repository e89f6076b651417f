"""YAML files as plain values: numbers of YAML 1.2, and refused texts."""

import os
import threading

import pytest

from csrun.base.errors import UsageError
from csrun.base.plain_yaml import MAX_BYTES, read

BOMB = b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)
)
MERGES = b"a0: &a0 {x: 1, y: 2}\n" + b"".join(
    b"a%d: &a%d {<<: [%s]}\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 8)
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-2", 0.01),
        ("1E3", 1000.0),
        ("-2.5e3", -2500.0),
        ("+.5", 0.5),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("12", 12),
        ("0x10", 16),
        ("'1e-2'", "1e-2"),
        ("1e", "1e"),
        ("e3", "e3"),
        (".", "."),
        ("-", None),  # an empty item of a list
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:9000", "10.0.0.1:9000"),
        ("2022-04-01", "2022-04-01"),
        ("~", None),
        ("true", True),
        ("yes", "yes"),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("-.INF", float("-inf")),
        ("0", 0),
        ("0.5", 0.5),
        ("-0", 0),
        ("a: !!str 017", {"a": "017"}),
    ],
)
def test_values_are_those_of_yaml_1_2(path, text, value):
    path.write_text(f"{text}\n")
    expected = [None] if text == "-" else value
    assert read(path) == expected
    assert type(read(path)) is type(expected)


def test_a_merged_key_may_be_given_again(path):
    path.write_text("- &a {x: 1, y: 2}\n- &b {<<: *a, x: 3}\n- {<<: *b, y: 4}\n- {<<: *b}\n")
    assert read(path)[1:] == [{"x": 3, "y": 2}, {"x": 3, "y": 4}, {"x": 3, "y": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"a: 1\nb: 2\na: 3\n",
            "line 3, column 1: not YAML: duplicate key a, first in line 1: remove",
        ),
        (b"a:\n  b: 1\n  'b': 2\n", "line 3, column 3: not YAML: duplicate key b, first in line 2"),
        (
            b"a:\n\tb: 1\n",
            "line 2, column 1: not YAML: found character '\\t' that cannot start any token; "
            "indent with spaces, not with tabs",
        ),
        (b"a: 1\n  b: 2\n", "line 2, column 4: not YAML: mapping values are not allowed here; is"),
        (b"a: 1\nb: caf\xe9\n", "line 2: not text in UTF-8: byte 0xe9; save the file as UTF-8"),
        (b"a: 1\nb: \x00\n", "line 2: not text in UTF-8: byte 0x00"),
        (b"a: !!timestamp x\n", "line 1, column 4: not YAML: could not determine a constructor"),
        (b"a: !!bool x\n", "line 1, column 4: not YAML: x is not of type bool"),
        (b"a: !!int 1_000\n", "line 1, column 4: not YAML: 1_000 is not of type int"),
        (b"a: 017\n", "line 1, column 4: not YAML: 017: write the number without leading zeros"),
        (b"a: -08.5\n", "line 1, column 4: not YAML: -08.5: write the number without leading"),
        (b"a: 1:30:00\n", "line 1, column 4: not YAML: 1:30:00 is not a number: quote it"),
        (b'a: "\\uD800"\n', "line 1, column 4: not YAML: unpaired surrogate"),
        (b"a: " + b"9" * 5000, "line 1, column 4: not YAML: " + "9" * 40 + "… is not of type int"),
        (b"[" * 900, "line 1, column 66: not YAML: nested more than 64 levels deep"),
        (b"- " * 900 + b"x", "line 1, column 131: not YAML: nested more than 64 levels deep"),
        (b"&a [*a]", "line 1, column 1: not YAML: recursive alias"),
        (
            BOMB,
            "line 1, column 1: not YAML: more than 100,000 values once its aliases are expanded",
        ),
        (MERGES, "line 1, column 1: not YAML: more than 100,000 values once its aliases"),
        (b"a: !!python/object:os.system {}\n", "line 1, column 4: not YAML: could not determine"),
        (b"a: 1\n---\nb: 1\n", "line 2, column 1: not YAML: but found another document"),
    ],
)
def test_what_is_wrong_with_a_text_is_said_with_its_line(path, text, message):
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_pipe_is_read_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a: 1\n",))
    writer.start()
    assert read(pipe) == {"a": 1}
    writer.join()


def test_a_file_that_is_too_large_is_not_read_whole(path):
    path.write_bytes(b"# " + b"x" * MAX_BYTES)
    with pytest.raises(UsageError, match="cannot be read: more than 1,048,576 bytes"):
        read(path)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64])
def test_a_number_of_more_than_64_bits_is_refused(path, number):
    path.write_text(f"a: {number}\n")
    with pytest.raises(UsageError, match=f"{number} has more than 64 bits"):
        read(path)
