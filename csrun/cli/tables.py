"""Rows of text: a table on a terminal that has room for it, else aligned columns."""

import sys
from collections.abc import Iterable, Sequence


def show(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their headings."""
    rows = list(rows)
    if not sys.stdout.isatty() or not _show_table(headings, rows):
        _show_columns([[heading.upper() for heading in headings], *rows])


def _show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Print a table; False when the terminal is too narrow to show all of it."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    unbounded = console.options.update(max_width=sys.maxsize)
    fits = Measurement.get(console, unbounded, table).maximum <= console.width
    if fits:
        console.print(table)
    return fits


def _show_columns(rows: list[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
