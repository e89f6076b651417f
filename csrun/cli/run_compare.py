"""csrun compare: how two runs differ, from their parameters to the first step."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.base.flat_values import Difference
    from csrun.records.run_comparison import LossComparison, RunComparison

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
DIFFERENT = 1  # exit code; 2, of a UsageError, is that of runs that cannot be compared
a_model_dir = click.Path(path_type=Path)


@click.command("compare", context_settings=SETTINGS)
@click.argument("run_a", type=a_model_dir)
@click.argument("run_b", type=a_model_dir)
@frame.in_format
def compare(run_a: Path, run_b: Path, output: str) -> int:
    """Compare two trainings by their model_dirs: parameters, versions, CPU, seed, losses.

    Exit code 0 if nothing differs, 1 if anything does, 2 if they cannot be compared.
    """
    from csrun.records.run_comparison import compare_runs

    found = compare_runs(run_a, run_b)
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        _show(found)
    return 0 if found.is_equal else DIFFERENT


def _show(found: "RunComparison") -> None:
    _show_table("parameter", found.parameters)
    _show_table("identity", found.identity)
    click.echo("\n".join(_of_losses(found.losses)))


def _show_table(heading: str, found: "tuple[Difference, ...]") -> None:
    from csrun.base.flat_values import MISSING
    from csrun.cli import tables

    if found:
        rows = [(e.key, e.first or MISSING, e.second or MISSING) for e in found]
        tables.show((heading, "a", "b"), rows)
        click.echo()


def _of_losses(found: "LossComparison") -> list[str]:
    more = ""
    if found.only_first or found.only_second:
        more = f"; only in A: {found.only_first} steps, only in B: {found.only_second}"
    if found.diverged is None or found.largest is None:
        return [f"losses: {found.common} steps with identical bits{more}"]
    first, largest = found.diverged, found.largest
    return [
        f"losses: {found.differing} of {found.common} common steps differ{more}",
        f"first difference: step {first.step}: {first.first:.9g} and {first.second:.9g}"
        f" (relative {first.relative:.2g})",
        f"largest difference: step {largest.step}: {largest.first:.9g} and {largest.second:.9g}"
        f" (relative {largest.relative:.2g})",
    ]
