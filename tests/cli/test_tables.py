"""Tables in a terminal."""

import io
import sys

import pytest

from csrun.cli import tables

HEADINGS = ("job", "name", "why")
LONG = "because " * 40


def test_a_pipe_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    tables.show(HEADINGS, [("1", "a", LONG)], cut="why")
    assert LONG.rstrip() in written.getvalue()


def be_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Make capsys's standard output look like a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))


def test_the_last_column_fits_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch, 36)
    tables.show(HEADINGS, [("1", "a-name-of-15-ch", LONG)], cut="why")
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["JOB", "NAME", "WHY"]
    assert (len(row), row[-1]) == (36, "…")


def test_columns_are_dropped_for_a_last_one_that_has_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch, 70)
    headings = ("job", "when", "state", "why")
    for why, kept in (("short", "JOB  WHEN"), (LONG, "JOB  STATE")):
        tables.show(headings, [("1", "w" * 80, "FAILED", why)], cut="why", droppable=("when",))
        header, row = capsys.readouterr().out.splitlines()
        assert header.startswith(kept)
        assert len(row) <= 70


def test_a_long_name_leaves_room_for_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch, 80)
    tables.show(HEADINGS, [("1", "n" * 60, LONG), ("2", "日本", "x")], cut="why")
    header, row, other = capsys.readouterr().out.splitlines()
    assert (len(row), row.count("n"), row.count("…")) == (80, 22, 2)
    assert header.index("WHY") == row.index("because") == other.index("x") + 2  # of two cells each


def test_one_look_whatever_the_length_of_the_last_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch, 100)
    for why in ("", LONG):
        tables.show(HEADINGS, [("1", "a", why)], cut="why")
        assert capsys.readouterr().out.startswith("JOB  NAME  WHY\n1    a")


def test_a_last_column_is_wrapped_at_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_terminal(monkeypatch, 36)
    tables.show(
        ("what", "estimate"), [("limit", "a larger batch_size raises the rate")], is_wrapped=True
    )
    assert capsys.readouterr().out.splitlines() == [
        "WHAT   ESTIMATE",
        "limit  a larger batch_size raises",
        "       the rate",
    ]


def test_escape_sequences_of_a_name_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(HEADINGS, [("1", "a\x1b]0;title\x07", "two\nlines")], cut="why")
    assert capsys.readouterr().out.splitlines()[1] == r"1    a\x1b]0;title\x07  two\nlines"
