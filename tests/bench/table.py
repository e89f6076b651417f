"""The results of a run of scripts/bench as a Markdown table: `table.py RESULTS.jsonl`.

The exit code is 1 if a target was missed.
"""

import sys
from pathlib import Path

import msgspec
from result import Result

HEAD = ["| workload | side | median | baseline | ratio | target |", "|---|---|---|---|---|---|"]


def table(results: list[Result]) -> str:
    """One row a result, in the order in which they were measured."""
    rows = [
        f"| {r.workload} | {r.side} | {_digits(r.value)} {r.unit} | {r.baseline} | {r.ratio:.2f} "
        f"| {r.wanted}{' (missed)' if r.missed else ''} |"
        for r in results
    ]
    return "\n".join([*HEAD, *rows])


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_bytes().splitlines()
    measured = [msgspec.json.decode(line, type=Result) for line in lines]
    print(table(measured))
    sys.exit(any(r.missed for r in measured))
