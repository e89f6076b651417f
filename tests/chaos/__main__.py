"""`scripts/chaos`: disturb trainings and print a table of the results."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from chaos import disks
from chaos.configurations import CONFIGURATIONS, Configuration, Results, undisturbed
from chaos.figures import Row, table
from chaos.rounds import Round, kill_round
from support.testbed import IS_INSTALLED, Testbed, new_testbed

DISK = "disk"


def main() -> int:
    """Run the rounds, print a line for each with a fault, then the table; return 1 for a fault."""
    given = _arguments()
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="csrun-chaos-") as folder, ExitStack() as resources:
        bench = Bench(Path(folder), resources)
        for name, seed in [given.again] if given.again else _rounds(given, rows):
            found = bench.round(name, seed)
            rows.setdefault(name, Row()).add(found)
            print(f"{name}:{seed} disturbed {found.disturbed}", file=sys.stderr)
            for kind, sentence in found.faults:
                print(f"{name}: {kind}: {sentence}\n  again: {found.repeat}", flush=True)
            if not found.faults:
                shutil.rmtree(Path(folder, f"{name}-{seed}"))
        print(table(rows.items()))
    return int(any(row.faults for row in rows.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="processes to kill, at least")
    parser.add_argument("--disks", type=int, default=16, help="rounds on a failing disk")
    parser.add_argument("--seed", default="1", help="of all that is drawn")
    parser.add_argument("--only", help=f"some of {','.join((*CONFIGURATIONS, DISK))}")
    parser.add_argument(
        "--again", type=lambda text: text.split(":", 1), help="one round, as it was printed"
    )
    return parser.parse_args()


def _rounds(given: argparse.Namespace, rows: dict[str, Row]) -> Iterator[tuple[str, str]]:
    """Rounds of all configurations in turn, up to a number of kills; then those of disks."""
    has_torch = find_spec("torch") is not None
    is_there = {name: has_torch for name, found in CONFIGURATIONS.items() if found.is_torch}
    is_there["slurm"] = IS_INSTALLED
    there = [name for name in CONFIGURATIONS if is_there.get(name, True)]
    wanted = given.only.split(",") if given.only else [*there, DISK]
    names, number = [name for name in wanted if name != DISK], 0
    while names and sum(row.disturbed for row in rows.values()) < given.kills:
        yield names[number % len(names)], f"{given.seed}.{number}"
        number += 1
    if DISK in wanted and disks.HAS_COMPILER:
        yield from ((DISK, f"{given.seed}.{disk}") for disk in range(given.disks))


class Bench:
    """Values shared by rounds, made on first use."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        self._folder, self._resources = folder, resources
        self._references: dict[str, Results] = {}
        self._cluster: Testbed | None = None
        self._library: Path | None = None

    def round(self, name: str, seed: str) -> Round:
        if name == DISK:
            self._library = self._library or disks.compiled(self._folder)
            return disks.disk_round(self._folder, seed, self._reference, self._library)
        if name == "slurm" and self._cluster is None:
            self._cluster = new_testbed()
            self._resources.callback(self._cluster.stop)
            self._cluster.start()
        reference = self._reference(CONFIGURATIONS[name])
        return kill_round(self._folder, name, seed, reference, self._cluster)

    def _reference(self, configuration: Configuration) -> Results:
        """Result of an undisturbed run."""
        key = configuration.reference
        if key not in self._references:
            folder = self._folder / f"undisturbed-{len(self._references)}"
            self._references[key] = undisturbed(folder, configuration)
        return self._references[key]


if __name__ == "__main__":
    sys.exit(main())
