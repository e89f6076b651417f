"""The results of a run of scripts/bench as a Markdown table: `table.py RESULTS.jsonl`."""

import sys
from pathlib import Path

import msgspec
from result import Result


def table(results: list[Result]) -> str:
    """One row a result, in the order in which they were measured."""
    rows = ["| workload | side | median | beside | ratio |", "|---|---|---|---|---|"]
    for r in results:
        rows.append(
            f"| {r.workload} | {r.side} | {r.value:,.4g} {r.unit} | {r.baseline} | {r.ratio:.2f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_bytes().splitlines()
    print(table([msgspec.json.decode(line, type=Result) for line in lines]))
