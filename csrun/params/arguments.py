"""The options that every run.py takes, as in the original's model zoo."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import msgspec

from csrun.base.errors import UsageError
from csrun.params.load import load


def count(value: str) -> int:
    """A whole number from 1 on.

    Raises: click.BadParameter
    """
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"must be a whole number >= 1, got {value}")
    return int(value)


def text(value: str) -> str:
    """Text that is not empty.

    Raises: click.BadParameter
    """
    if not value:
        raise click.BadParameter("must not be empty; is a variable of the shell unset?")
    return value


P = TypeVar("P", bound=msgspec.Struct)

LIMITS = ("steps", "max_steps")
BOTH_SPELLINGS = {"token_normalize_func": lambda token: token.replace("-", "_")}


class Mode(StrEnum):
    """What a run.py is to do."""

    TRAIN = "train"
    EVAL = "eval"
    EVAL_ALL = "eval_all"
    TRAIN_AND_EVAL = "train_and_eval"
    PREDICT = "predict"
    COMPILE_ONLY = "compile_only"
    VALIDATE_ONLY = "validate_only"


COMPILING = (Mode.VALIDATE_ONLY, Mode.COMPILE_ONLY)
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
    path, mode = values.pop("params"), _mode(values)
    _refuse_several_systems(values.pop("num_csx"))
    overrides = {key: value for key, value in values.items() if value is not None}
    _check(mode, overrides)
    if any(limit in overrides for limit in LIMITS):  # the file's other limit would hold as well
        overrides = {**dict.fromkeys(LIMITS), **overrides}
    return Arguments(mode, load(schema, Path(path), overrides))


def _refuse_several_systems(num_csx: int | None) -> None:
    if num_csx is not None and num_csx > 1:
        raise UsageError(f"--num_csx: a run has one CS system, got {num_csx}; leave it out")


def _mode(values: dict[str, Any]) -> Mode:
    """What is to be done, of --mode and the two flags."""
    mode = Mode(values.pop("mode"))
    flags = [flag for flag in COMPILING if values.pop(flag.value)]
    if len({*flags, *({mode} & set(COMPILING))}) > 1:
        raise UsageError(
            "give validate_only or compile_only, not both: the first stops where kernels are "
            "matched, the second leaves the whole compile"
        )
    if flags and mode not in (Mode.TRAIN, *COMPILING):
        raise UsageError(
            f"--{flags[0]} compiles the training, got --mode {mode} with it: leave one of them out"
        )
    return next(iter(flags), mode)


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
    options: list[click.Parameter] = [
        click.Option(
            ["-p", "--params"],
            type=text,
            default=str(default_params),
            show_default=True,
            help="Params file.",
        ),
        click.Option(
            ["-m", "--mode"],
            type=click.Choice([mode.value for mode in Mode], case_sensitive=False),
            default=Mode.TRAIN.value,
            show_default=True,
            help="What to do.",
        ),
        click.Option(
            ["-o", "--model_dir"], type=text, help="Folder of checkpoints, events and reports."
        ),
        click.Option(["--cs_ip"], type=text, help="CS system: host, host:port or name."),
        click.Option(["--max_steps"], type=count, help="Train up to this global step."),
        click.Option(["--steps"], type=count, help="Train this many steps more."),
        click.Option(["--eval_steps"], type=count, help="Evaluate this many batches."),
        click.Option(["--checkpoint_path"], type=text, help="Checkpoint, or folder of them."),
        click.Option(["--num_csx"], type=count, help="CS systems of the run: 1."),
        click.Option(
            ["--multireplica"],
            is_flag=True,
            default=None,
            help="As many replicas of the model as fit the system and pay.",
        ),
        click.Option(["--compile_only"], is_flag=True, help="Compile, and run nothing."),
        click.Option(["--validate_only"], is_flag=True, help="Match kernels, and stop there."),
    ]
    return click.Command(
        "run.py", params=options, callback=callback, context_settings=BOTH_SPELLINGS
    )


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]
