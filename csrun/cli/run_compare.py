"""csrun compare: differences of two runs, from parameters to operators of the first step."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from csrun.base.choice import Choice
from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.advice.operator_comparison import (
        OperatorComparison,
        OperatorDifference,
        ValueDifference,
    )
    from csrun.base.flat_values import Difference
    from csrun.base.run_command import RunCommand
    from csrun.records.run_comparison import LossComparison, RunComparison

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
DIFFERENT = 1  # exit code; 2 is that of a UsageError, for runs that cannot be compared
BAR = 40  # characters of the longest bar of a histogram
OTHER_ORDER = "PyTorch adds numbers up in another order: --ulp 64 --of-largest allows for that"
ONLY = ("only in A", "only in B")
MOST_KEYS = 3  # of a section that only one run has; more are one row
_LAST_KEY = re.compile(r"(\.[^.\[]+|\[\d+\])$")
a_run = click.Path(file_okay=False)  # existence is not checked, because a command is accepted, too


@click.command("compare", context_settings=SETTINGS)
@click.argument("run_a", type=a_run)
@click.argument("run_b", type=a_run, required=False)
@click.option(
    "--operators", is_flag=True, help="Run both again, up to the first difference of an operator."
)
@click.option(
    "--against",
    type=Choice(["torch"]),
    help="Run A, a cerebras_torch script, again, and compare its operators with PyTorch's.",
)
@click.option(
    "--ulp",
    type=frame.WholeNumber(min=0),
    default=0,
    show_default=True,
    help="Tolerance of operators, in units in the last place.",
)
@click.option(
    "--of-largest",
    is_flag=True,
    help="Count units of each value's largest element, not of the element that differs.",
)
@click.option(
    "--steps",
    type=frame.WholeNumber(min=1),
    help="Steps whose operators are compared; default: up to the first difference of a loss, or 1 "
    "step against torch.",
)
@click.option("--all", "shows_all", is_flag=True, help="Print equal values, too.")
@frame.in_format
def compare(
    run_a: str,
    run_b: str | None,
    operators: bool,
    against: str | None,
    steps: int | None,
    output: str,
    shows_all: bool,
    **allowed: Any,
) -> int:
    """Compare two trainings by their model_dirs: parameters, versions, CPU, seed, losses.

    With --operators both are run again, in separate folders, from their newest common checkpoint.
    Two quoted commands in place of the model_dirs are run from the start, and their operators are
    compared.

    Exit code 0 if nothing differs, 1 if anything does, 2 if they cannot be compared. With
    --operators or --against only operators count.
    """
    from csrun.records.run_comparison import compare_runs

    if (run_b is None) == (against is None):
        raise click.UsageError("name two trainings, or one and --against torch")
    commands = _commands_in([each for each in (run_a, run_b) if each])
    operators |= bool(commands)
    found = None if run_b is None or commands else compare_runs(Path(run_a), Path(run_b))
    is_table = output == "table"
    if is_table and found is not None:
        _show(found, shows_all)
    if found is not None and not operators:
        if not is_table:
            _show_json(found)
        return 0 if found.is_equal else DIFFERENT
    with frame.output_to_errors() if not is_table else nullcontext():
        values = _compare_operators(run_a, run_b, commands, steps, **allowed)
    if is_table:
        names = ("not in PyTorch", "only in PyTorch") if run_b is None else ONLY
        click.echo("\n".join(_of_operators(values, names)))
        if run_b is None and not values.is_equal and not allowed["ulp"]:
            click.echo(OTHER_ORDER)
    else:
        _show_json({"runs": found, "operators": values})
    return 0 if values.is_equal else DIFFERENT


def _commands_in(runs: Sequence[str]) -> "list[RunCommand]":
    """Return the commands given in place of the model_dirs; none if there is a model_dir.

    Raises: UsageError for a command next to a model_dir
    """
    from csrun.base.run_command import RunCommand

    missing = [run for run in runs if not os.path.exists(run)]
    commands = [tuple(argv) for run in missing if len(argv := _split(run)) > 1]
    if commands and len(commands) < 2:
        raise click.UsageError(
            f"{shlex.join(commands[0])}: no such model_dir; name two model_dirs, or two commands"
        )
    return [RunCommand(argv, os.getcwd()) for argv in commands]


def _split(run: str) -> list[str]:
    with suppress(ValueError):  # an unmatched quote
        return shlex.split(run)
    return []


def _compare_operators(
    run_a: str,
    run_b: str | None,
    commands: "Sequence[RunCommand]",
    steps: int | None,
    ulp: int,
    of_largest: bool,
) -> "OperatorComparison":
    from csrun.advice import operator_comparison as comparison

    tolerance = comparison.Tolerance(ulp, of_largest)
    if run_b is None:
        return comparison.compare_with_torch(Path(run_a), tolerance, steps or 1, _report)
    if commands:
        first, second = commands
        return comparison.compare_commands(first, second, tolerance, steps, _report)
    return comparison.compare_operators(Path(run_a), Path(run_b), tolerance, steps, _report)


def _report(line: str) -> None:
    click.echo(line, err=True)


def _show_json(found: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(found)))


def _show(found: "RunComparison", shows_all: bool) -> None:
    _show_table("parameter", found.parameters, found.equal_parameters if shows_all else {})
    _show_table("identity", found.identity, found.equal_identity if shows_all else {})
    modes = [
        f"; {', '.join(modes)} only in {run}"
        for run, modes in (("A", found.only_first_modes), ("B", found.only_second_modes))
        if modes
    ]
    lines = [
        _counted("parameters", found.parameters, found.equal_parameters) + "".join(modes),
        _counted("identity", found.identity, found.equal_identity)
        + "".join(f"; no valid checkpoint in {run}" for run in found.without_checkpoint),
        *_of_losses(found.losses),
    ]
    click.echo("\n".join(lines))


def _counted(what: str, differing: "Sequence[Difference]", equal: Mapping[str, str]) -> str:
    number = len(differing)
    return f"{what}: {number or 'none'} of {number + len(equal)} {_differ(number)}"


def _differ(number: int) -> str:
    return "differs" if number == 1 else "differ"


def _show_table(heading: str, found: "Sequence[Difference]", equal: Mapping[str, str]) -> None:
    from csrun.base.flat_values import MISSING
    from csrun.cli import tables

    rows = [(e.key, e.first or MISSING, e.second or MISSING) for e in found]
    rows = rows if equal else _folded(rows)
    rows += [(key, value, value) for key, value in equal.items()]
    if rows:
        tables.show((heading, "a", "b"), rows)
        click.echo()


def _folded(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Merge the rows of a section with many keys that only one of the runs has."""
    from csrun.base.flat_values import MISSING

    found = []
    for (section, is_first, is_second), group in groupby(
        rows, lambda row: (_LAST_KEY.sub("", row[0]), row[1] == MISSING, row[2] == MISSING)
    ):
        several = list(group)
        if len(several) > MOST_KEYS and (is_first or is_second):
            sides = (MISSING if is_first else "set", MISSING if is_second else "set")
            several = [(f"{section}: {len(several)} keys", *sides)]
        found += several
    return found


def _of_losses(found: "LossComparison") -> list[str]:
    sides = (("A", found.only_first), ("B", found.only_second))
    more = "".join(f"; {_steps(count)} only in {run}" for run, count in sides if count)
    if found.diverged is None or found.largest is None:
        return [f"losses: {_steps(found.common)} with identical bits{more}"]
    first, largest = found.diverged, found.largest
    return [
        f"losses: {found.differing} of {found.common} common steps"
        f" {_differ(found.differing)}{more}",
        f"first difference: step {first.step}: {first.first:.9g} and {first.second:.9g}"
        f" (relative {first.relative:.2g})",
        f"largest difference: step {largest.step}: {largest.first:.9g} and {largest.second:.9g}"
        f" (relative {largest.relative:.2g})",
    ]


def _values(count: int) -> str:
    return f"{count:,} value{'s' * (count != 1)}"


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _of_operators(found: "OperatorComparison", only: tuple[str, str]) -> list[str]:
    """Return the lines of a comparison; only: of values that one of the runs has."""
    start = (
        "the initial weights" if found.start is None else f"the checkpoint of step {found.start}"
    )
    first, last = found.first_step, found.last_step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    within = f" within {found.tolerance_ulp} ulp" if found.tolerance_ulp else ""
    rest = [
        f"{count} {what}"
        for count, what in (
            (found.only_first, only[0]),
            (found.only_second, only[1]),
            (found.unlike, "not comparable"),
        )
        if count
    ]
    more = f" ({', '.join(rest)})" if rest else ""
    if found.difference is None:
        equal = "equal" if within else "bitwise identical"
        count, lines = f"{_values(found.compared)} {equal}", []
    else:
        count = f"{_values(found.compared - 1)} equal"
        lines = _of_difference(found.difference)
    return [
        f"operators: {count}{within}, {steps} from {start}{more}",
        *_of_names(only[0], found.first_names, found.only_first),
        *_of_names(only[1], found.second_names, found.only_second),
        *lines,
    ]


def _of_names(only: str, names: Sequence[str], count: int) -> list[str]:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return [f"{only}: {', '.join(names)}{more}"] if names else []


def _of_difference(found: "OperatorDifference") -> list[str]:
    value, place = found.value, ", ".join(map(str, found.value.place))
    kernels = " and ".join(dict.fromkeys(kernel for kernel in found.kernels if kernel))
    rows = [
        ("step", str(found.step)),
        ("layer", found.layer),
        ("operator", f"{found.operator} ({found.key}, {'x'.join(map(str, found.shape))})"),
        ("kernel", kernels),
        ("PyTorch", found.recorded),
        ("line", found.line),
        ("largest", f"{value.largest_ulp:,} ulp at [{place}]: {value.first:.9g} and"
                    f" {value.second:.9g}; {value.largest:.3g} in absolute terms"),
        ("differing", f"{value.differing:,} of {value.elements:,} elements"),
    ]  # fmt: skip
    return [
        "first difference of an operator:",
        *(f"    {name:10}{text}" for name, text in rows if text),
        *_of_histogram(value),
    ]


def _of_histogram(value: "ValueDifference") -> list[str]:
    most = max(each.count for each in value.histogram)
    lines = []
    for each in value.histogram:
        name = f"{each.first:,}" if each.first == each.last else f"{each.first:,}+"
        bar = "#" * max(1, round(BAR * each.count / most))
        lines.append(f"    {name:>14} ulp  {each.count:>12,}  {bar}")
    return lines
