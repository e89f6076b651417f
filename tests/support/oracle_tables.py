"""Committed tables of what csrun refuses of PyTorch's databases; all else in them is equal.

A row is a name, its outcome, and the reasons of its refusals. The tests fail where a row is no
longer true, in either direction, so that a table has what is refused today and nothing else.

    $ PYTHONPATH=tests .venv/bin/python -m support.oracle_tables operators

writes a table anew, as for another version of PyTorch.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.oracle import (
    Outcome,
    Report,
    Role,
    Sample,
    modules,
    operators,
    samples_of,
    samples_of_module,
)

TABLES = Path(__file__).parents[1] / "oracle/tables"
OPERATORS, MODULES = "operators", "modules"

#: A refusal's form by the name that the tables give it; docs/pytorch.md has the remedies.
REASONS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(text)
    for name, text in {
        "operator": "operator not supported|PyTorch decomposes it into|has no out-of-place form",
        "type": r"dtype torch\.\w+ is not supported|a tensor is torch\.",
        "shape": "the shape of its result depends on the data|a write by a mask takes one value",
        "read": "the operator reads the values of its operands",
        "number": "forward reads the value of a traced tensor",
        "draws": "draws random numbers|computes with random numbers that it draws",
        "places": "PyTorch does not define which",
        "pooling": "avg_pool3d divides by",
        "limit": "eps must be >= 0|a batch norm in training must be a call of"
        "|a batch norm outside the model is in training mode"
        "|output_padding of a transposed convolution",
        # PyTorch refuses in a recorded step what it otherwise lets pass.
        "recording": r"PyTorch raises \w+: ",
    }.items()
}


@dataclass(frozen=True)
class Row:
    """What becomes of a name's samples: its outcome, and the reasons of refusals, sorted."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.outcome.value} {','.join(self.reasons)}".strip()


EQUAL = Row(Outcome.EQUAL)


def reason_of(refusal: str) -> str | None:
    """Return the name of a refusal's form, or None for one that has none."""
    return next((name for name, form in REASONS.items() if form.search(refusal)), None)


def row_of(report: Report, name: str) -> Row:
    """Return what a run has found."""
    reasons = {reason_of(text) or "unknown" for text in report.refused[name]}
    return Row(report.outcome(name), tuple(sorted(reasons)))


def read(table: str) -> dict[str, Row]:
    """Return the committed rows by name."""
    lines = [line.split() for line in _path(table).read_text().splitlines()]
    return {
        name: Row(Outcome(outcome), tuple(",".join(reasons).split(",")) if reasons else ())
        for name, outcome, *reasons in (line for line in lines if line and line[0] != "#")
    }


def samples(table: str, names: Sequence[str] | None = None) -> dict[str, list[Sample]]:
    """Return the samples of a database's names, of all where none is given."""
    if table == MODULES:
        found = modules()
        return {name: samples_of_module(found[name], 6) for name in names or found}
    found = operators()
    return {name: samples_of(found[name], 4) for name in names or found}


def roles_of(table: str) -> tuple[Role, ...]:
    """Return where the samples' floats come from: a module's inputs have gradients."""
    return (Role.ACTIVATION,) if table == MODULES else (*Role,)


def run(table: str, names: Sequence[str], root: Path) -> Report:
    """Return the report of some names of a database, all in one program."""
    report = Report(root)
    report.run(samples(table, names), roles_of(table), read(table))
    return report


def problems(table: str, names: Sequence[str], root: Path) -> list[str]:
    """Return a line for each wrong number, unknown refusal and row that is no longer true."""
    report, rows = run(table, names, root), read(table)
    found = [f"{name}: {text}" for name, texts in report.wrong.items() for text in texts]
    found += [
        f"{name}: a refusal of no documented form: {text}"
        for name in names
        for text in report.refused[name]
        if reason_of(text) is None
    ]
    for name in names:
        now, before = row_of(report, name), rows.get(name, EQUAL)
        if name not in report.wrong and now != before:
            found.append(f"{name}: is {now}, the table says {before}: {_remedy(now, before)}")
    return found


def _remedy(now: Row, before: Row) -> str:
    order = [Outcome.EQUAL, Outcome.PARTLY, Outcome.REFUSED, Outcome.NOTHING]
    if now == EQUAL:
        return "take its row out"
    is_better = order.index(now.outcome) < order.index(before.outcome)
    return "write its row anew" if is_better else "it was better before, or has another reason"


def _path(table: str) -> Path:
    return TABLES / f"{table}.txt"


def _rows(table: str, names: Sequence[str]) -> Iterator[str]:
    for first in range(0, len(names), 20):
        block = names[first : first + 20]
        with tempfile.TemporaryDirectory() as folder:
            report = run(table, block, Path(folder))
        for name in block:
            for text in report.wrong[name]:
                print(f"WRONG {name}: {text}", file=sys.stderr)
            for text in report.refused[name]:
                if reason_of(text) is None:
                    print(f"UNKNOWN {name}: {text}", file=sys.stderr)
            if (row := row_of(report, name)) != EQUAL:
                yield f"{name:<54} {row.outcome.value:<8} {','.join(row.reasons)}".rstrip()


def main() -> None:
    """Write the table that the command names, and say what is wrong."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    (table,) = sys.argv[1:]
    names = list(modules() if table == MODULES else operators())
    header = f"# {table} of PyTorch's database that are not equal: name, outcome, reasons"
    _path(table).write_text("\n".join([header, *_rows(table, names)]) + "\n")


if __name__ == "__main__":
    main()
