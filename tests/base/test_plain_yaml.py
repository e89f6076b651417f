"""YAML files as plain values: the numbers of YAML 1.2, and texts that must be refused."""

import pytest

from csrun.base.errors import UsageError
from csrun.base.plain_yaml import read


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
        (b"a: 1\nb: 2\na: 3\n", "line 3, column 1: not YAML: a is given already in line 1: remove"),
        (b"a:\n  b: 1\n  'b': 2\n", "line 3, column 3: not YAML: b is given already in line 2"),
        (
            b"a:\n\tb: 1\n",
            "line 2, column 1: not YAML: found character '\\t' that cannot start any token; "
            "indent with spaces, not with tabs",
        ),
        (b"a: 1\n  b: 2\n", "line 2, column 4: not YAML: mapping values are not allowed here; is"),
        (b"a: 1\nb: caf\xe9\n", "line 2: not text in UTF-8: byte 0xe9; save the file as UTF-8"),
        (b"a: 1\nb: \x00\n", "line 2: not text in UTF-8: byte 0x00"),
        (b"a: !!timestamp 2022-13-01\n", "not YAML: month must be in 1..12"),
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
