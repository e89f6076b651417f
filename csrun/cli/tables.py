"""Rows of text: a table on a terminal, aligned columns for a pipe."""

import sys
from collections.abc import Iterable, Sequence


def show(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their headings."""
    if sys.stdout.isatty():
        _show_table(headings, rows)
    else:
        _show_columns([[heading.upper() for heading in headings], *rows])


def _show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def _show_columns(rows: list[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
