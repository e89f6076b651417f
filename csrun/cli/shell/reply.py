"""Replies of a command: records as text, or as JSON for a program."""

from collections.abc import Mapping, Sequence

import click
import msgspec

from csrun.base.safe_text import printable_line
from csrun.cli import tables

Value = str | int | float | None
Record = Mapping[str, Value]

TABLE, JSON = "table", "json"
_NAMES = {"sram": "SRAM", "io": "I/O", "cs": "CS"}  # names whose title case would be wrong
_UNITS = {"gbit_per_s": "Gbit/s", "per_s": "/s", "s": "s", "hz": "Hz", "bytes": "bytes"}


def show(reply: Record | Sequence[Record], output_format: str, if_empty: str = "") -> None:
    """Print a record, or a list of them."""
    if output_format == JSON:
        click.echo(msgspec.json.format(msgspec.json.encode(reply), indent=2).decode())
    elif isinstance(reply, Mapping):
        click.echo(lines(reply))
    elif reply:
        _print_table(reply)
    else:
        click.echo(if_empty)


def lines(record: Record) -> str:
    """Format a record as text, one line `Name : value` per field."""
    width = max(len(_label(key)) for key in record)
    return "\n".join(f"{_label(k):{width}} : {_text(k, value)}" for k, value in record.items())


def _print_table(records: Sequence[Record]) -> None:
    rows = ([_text(key, value) for key, value in record.items()] for record in records)
    tables.show([_label(key) for key in records[0]], rows)


def _label(key: str) -> str:
    words = _without_unit(key)[0].split("_")
    return " ".join(_NAMES.get(word, word.title()) for word in words)


def _text(key: str, value: Value) -> str:
    if value is None:
        return "-"
    unit = _without_unit(key)[1]
    if isinstance(value, float):
        value = f"{value:,.1f}".removesuffix(".0")
    elif isinstance(value, int) and unit:
        value = f"{value:,}"
    text = printable_line(str(value))
    return f"{text}{unit}" if unit.startswith("/") else f"{text} {unit}".rstrip()


def _without_unit(key: str) -> tuple[str, str]:
    """Split a field name such as `sram_bytes` into its words and its unit."""
    for suffix, unit in _UNITS.items():
        if key.endswith(f"_{suffix}"):
            return key.removesuffix(f"_{suffix}"), unit
    return key, ""
