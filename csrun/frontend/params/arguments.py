"""The options that every run.py takes, as in the original's model zoo."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import msgspec

from csrun.errors import UsageError
from csrun.frontend.params.load import load

P = TypeVar("P", bound=msgspec.Struct)

LIMITS = ("steps", "max_steps")


class Mode(StrEnum):
    """What a run.py is to do."""

    TRAIN = "train"
    EVAL = "eval"
    EVAL_ALL = "eval_all"
    TRAIN_AND_EVAL = "train_and_eval"
    PREDICT = "predict"
    COMPILE_ONLY = "compile_only"
    VALIDATE_ONLY = "validate_only"


MODES_OF_NO_ONE_CHECKPOINT = (Mode.EVAL_ALL, Mode.TRAIN_AND_EVAL)


class Arguments(msgspec.Struct, Generic[P], frozen=True):
    """A parsed command line: what to do, and the params with the command line's values in them."""

    mode: Mode
    params: P


def parse(schema: type[P], default_params: Path, argv: Sequence[str]) -> Arguments[P]:
    """Parse a run.py's command line; its values beat those of the params file.

    Raises: UsageError for an unknown option (with a suggestion), options that exclude each other or
    mean nothing in the mode, a missing or malformed file.
    """
    command = _command(lambda **values: _arguments(schema, values), default_params)
    script = Path(sys.argv[0]).name
    try:
        parsed: Arguments[P] | int = command.main(
            list(argv), prog_name=script, standalone_mode=False
        )
    except click.ClickException as error:
        raise UsageError(f"{script}: {_lower_first(error.format_message())}") from error
    if isinstance(parsed, int):  # --help has been printed
        raise SystemExit(parsed)
    return parsed


def _arguments(schema: type[P], values: dict[str, Any]) -> Arguments[P]:
    path, mode = values.pop("params"), Mode(values.pop("mode"))
    for flag in (Mode.COMPILE_ONLY, Mode.VALIDATE_ONLY):  # the one that stops earlier wins
        if values.pop(flag.value):
            mode = flag
    overrides = {key: value for key, value in values.items() if value is not None}
    _check(mode, overrides)
    if any(limit in overrides for limit in LIMITS):  # the file's other limit would hold as well
        overrides = {**dict.fromkeys(LIMITS), **overrides}
    return Arguments(mode, load(schema, Path(path), overrides))


def _check(mode: Mode, given: dict[str, Any]) -> None:
    if all(limit in given for limit in LIMITS):
        raise UsageError(
            f"give --steps or --max_steps, not both: got --steps {given['steps']} and "
            f"--max_steps {given['max_steps']}"
        )
    if mode in MODES_OF_NO_ONE_CHECKPOINT and "checkpoint_path" in given:
        raise UsageError(
            f"--checkpoint_path means nothing with --mode {mode}, got {given['checkpoint_path']}: "
            "leave it out, or choose --mode train, eval or predict"
        )


def _command(callback: Callable[..., Any], default_params: Path) -> click.Command:
    positive = click.IntRange(min=1)
    options: list[click.Parameter] = [
        click.Option(
            ["-p", "--params"], default=str(default_params), show_default=True, help="Params file."
        ),
        click.Option(
            ["-m", "--mode"],
            type=click.Choice([mode.value for mode in Mode]),
            default=Mode.TRAIN.value,
            show_default=True,
            help="What to do.",
        ),
        click.Option(["-o", "--model_dir"], help="Folder of checkpoints, events and reports."),
        click.Option(["--cs_ip"], help="CS system: host, host:port or name."),
        click.Option(["--max_steps"], type=positive, help="Train up to this global step."),
        click.Option(["--steps"], type=positive, help="Train this many steps more."),
        click.Option(["--eval_steps"], type=positive, help="Evaluate this many batches."),
        click.Option(["--checkpoint_path"], help="Start from this checkpoint."),
        click.Option(["--compile_only"], is_flag=True, help="Compile, and run nothing."),
        click.Option(["--validate_only"], is_flag=True, help="Match kernels, and stop there."),
    ]
    return click.Command("run.py", params=options, callback=callback)


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]
