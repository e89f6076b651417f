"""Rows of text on a screen."""

import io
import os
import shutil
import sys

import pytest

from csrun.cli import tables

HEADINGS = ("job", "name", "why")
LONG = "because " * 40


@pytest.mark.parametrize(("columns", "left"), [(80, 52), (30, tables.LEAST_CUT)])
def test_the_last_column_fits_the_screen(
    columns: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    (row,) = tables._cut(
        HEADINGS, [("1", "a-name-of-15-ch", LONG[: left + 300])], 10, tables.LEAST_CUT
    )
    assert row[:2] == ("1", "a-name-of-15-ch")
    assert (len(row[2]), row[2][-1]) == (left, "…")
    assert tables._cut(HEADINGS, [("1", "a", "why")], 10, tables.LEAST_CUT) == [("1", "a", "why")]


def test_a_pipe_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    tables.show(HEADINGS, [("1", "a", LONG)], cut="why")
    assert LONG.rstrip() in written.getvalue()


def test_columns_on_a_narrow_screen_fit_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "36")  # 18 for the others, 10 for a table's lines: 8 were left
    tables.show(HEADINGS, [("1", "a-name-of-15-ch", LONG)], cut="why")
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["JOB", "NAME", "WHY"]
    assert (len(row), row[-1]) == (36, "…")
