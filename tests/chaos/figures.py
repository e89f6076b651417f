"""Table of results of many rounds."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.rounds import FAULTS, Round

HEAD = ("", "rounds", "disturbed", *FAULTS)


@dataclass
class Row:
    """Row of a configuration. faults: number of rounds with a fault of each kind."""

    rounds: int = 0
    disturbed: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, found: Round) -> None:
        self.rounds += 1
        self.disturbed += found.disturbed
        self.faults.update({kind for kind, _ in found.faults})

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(map(str, (self.rounds, self.disturbed, *(self.faults[k] for k in FAULTS))))


def table(rows: Iterable[tuple[str, Row]]) -> str:
    """One line per configuration; a run that ended before its kill is not counted as disturbed."""
    lines = [HEAD, *((name, *row.cells) for name, row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
