"""Options of a run.py that `csrun.params` runs, as in Cerebras Model Zoo.

The launcher parses them before it starts tasks, and each task parses them again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from csrun.base import params_settings
from csrun.base.choice import Choice
from csrun.base.errors import UsageError
from csrun.base.mode import Mode
from csrun.base.params_settings import Setting

LIMITS = ("steps", "max_steps")
BOTH_SPELLINGS = {"token_normalize_func": lambda token: token.replace("-", "_")}
COMPILING = (Mode.VALIDATE_ONLY, Mode.COMPILE_ONLY)
MODES_OF_NO_ONE_CHECKPOINT = (Mode.EVAL_ALL, Mode.TRAIN_AND_EVAL)


class RunOptions(msgspec.Struct, frozen=True):
    """Values of the options. params: the params file; overrides: keys of `runconfig`."""

    mode: Mode
    params: str | None
    settings: tuple[Setting, ...]
    overrides: dict[str, Any]


def parse_options(
    script: str, arguments: Sequence[str], default_params: Path | None = None
) -> RunOptions:
    """Parse a script's command line; after --help the process ends.

    Raises: UsageError for an unknown option (with a suggestion), a wrong value, conflicting
    options, or options without effect in the mode
    """

    def options(**values: Any) -> RunOptions:
        mode, params = _mode(values), values.pop("params")
        settings = tuple(params_settings.parse(word) for word in values.pop("settings"))
        return RunOptions(mode, params, settings, _overrides(mode, values))

    command = _command(options, default_params)
    try:
        parsed: RunOptions | int = command.main(
            list(arguments), prog_name=script, standalone_mode=False
        )
    except click.ClickException as error:
        raise UsageError(f"{script}: {_lower_first(error.format_message())}") from error
    if isinstance(parsed, int):  # --help has been printed
        raise SystemExit(parsed)
    return parsed


def count(value: str) -> int:
    """Parse an integer >= 1.

    Raises: click.BadParameter
    """
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"must be a whole number >= 1, got {value}")
    return int(value)


def text(value: str) -> str:
    """Parse a non-empty string.

    Raises: click.BadParameter
    """
    if not value:
        raise click.BadParameter("must not be empty; is a shell variable unset?")
    return value


def _overrides(mode: Mode, values: dict[str, Any]) -> dict[str, Any]:
    """Return the command line's values for the `runconfig` section."""
    overrides = {key: value for key, value in values.items() if value is not None}
    _check(mode, overrides)
    # otherwise the file's other limit would apply, too
    if any(limit in overrides for limit in LIMITS):
        overrides = {**dict.fromkeys(LIMITS), **overrides}
    return overrides


def _mode(values: dict[str, Any]) -> Mode:
    """Return the mode, from --mode and the two flags."""
    mode = Mode(values.pop("mode"))
    flags = [flag for flag in COMPILING if values.pop(flag.value)]
    if len({*flags, *({mode} & set(COMPILING))}) > 1:
        raise UsageError(
            "give validate_only or compile_only, not both: validate_only only matches kernels, "
            "compile_only writes the whole compile"
        )
    if flags and mode not in (Mode.TRAIN, *COMPILING):
        raise UsageError(
            f"--{flags[0]} compiles for training and cannot be combined with --mode {mode}: "
            "remove one of them"
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
            f"--checkpoint_path has no effect with --mode {mode}, got {given['checkpoint_path']}: "
            "remove it, or use --mode train, eval or predict"
        )


def _command(callback: Callable[..., Any], default_params: Path | None) -> click.Command:
    return click.Command(
        "run.py",
        params=[*_options_of_params(default_params), *_options_of_run()],
        callback=callback,
        context_settings=BOTH_SPELLINGS,
    )


def _options_of_params(default_params: Path | None) -> list[click.Parameter]:
    """Return the options of the params file."""
    return [
        click.Option(
            ["-p", "--params"],
            type=text,
            default=str(default_params) if default_params else None,
            show_default=str(default_params) if default_params else "the script's own",
            help="Params file.",
        ),
        click.Option(
            ["--set", "settings"],
            type=text,
            multiple=True,
            metavar="KEY=VALUE",
            help="Value of a key of the params, as optimizer.learning_rate=0.1; repeatable.",
        ),
    ]


def _options_of_run() -> list[click.Parameter]:
    """Return the options of the run: its mode, and keys of `runconfig`."""
    return [
        click.Option(
            ["-m", "--mode"],
            type=Choice([mode.value for mode in Mode], case_sensitive=False),
            default=Mode.TRAIN.value,
            show_default=True,
            help="Action of the run.",
        ),
        click.Option(
            ["-o", "--model_dir"], type=text, help="Folder of checkpoints, events and reports."
        ),
        click.Option(["--cs_ip"], type=text, help="CS system: host, host:port or name."),
        click.Option(["--max_steps"], type=count, help="Train up to this global step."),
        click.Option(["--steps"], type=count, help="Train this many steps more."),
        click.Option(["--eval_steps"], type=count, help="Evaluate this many batches."),
        click.Option(
            ["--checkpoint_path"], type=text, help="Checkpoint, or folder of checkpoints."
        ),
        click.Option(["--num_wgt_servers"], type=count, help="MemoryX tasks of the job, M."),
        click.Option(["--num_csx"], type=count, help="CS systems that share each batch."),
        click.Option(
            ["--multireplica"],
            is_flag=True,
            default=None,
            help="Use the fastest number of model replicas that fit.",
        ),
        click.Option(["--compile_only"], is_flag=True, help="Compile without running."),
        click.Option(["--validate_only"], is_flag=True, help="Match kernels without compiling."),
    ]


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]
