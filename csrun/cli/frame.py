"""Common frame of all commands: job options, error messages and exit codes."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn

import click

from csrun.base import streams
from csrun.base.choice import Choice
from csrun.base.errors import CsrunError, OutputError, brief
from csrun.base.safe_text import printable
from csrun.base.version import VERSION
from csrun.cli.completion import complete_command, site_names
from csrun.cli.entry import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from csrun.launch import JobOptions


ANNOUNCED_AFTER_S = 0.8


@contextmanager
def output_to_errors() -> Iterator[None]:
    """Redirect standard output of this process and its children to standard error, for a command
    whose standard output is read by a program.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


SETTINGS: dict[str, Any] = {
    "allow_interspersed_args": False,  # arguments after CMD belong to it
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


class CommandGroup(click.Group):
    """Group of commands whose help lists the first sentence of each, wrapped instead of cut."""

    group_class = type  # of its groups, too

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, each.get_short_help_str(sys.maxsize)) for name, each in found if each]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@contextmanager
def announced(text: str) -> Iterator[None]:
    """Print a text on standard error if the block takes longer than about a second."""
    timer = Timer(ANNOUNCED_AFTER_S, lambda: click.echo(text, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class WholeNumber(click.IntRange):
    """Integer within a range, with csrun's error messages."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"must be a whole number{self._bounds()}, got {value!r}", param, ctx)
        if not (self.min or 0) <= number <= (number if self.max is None else self.max):
            self.fail(f"must be a whole number{self._bounds()}, got {number}", param, ctx)
        return number

    def _bounds(self) -> str:
        if self.max is not None:
            return f" from {self.min or 0} to {self.max}"
        return f" >= {self.min or 0}"


version = click.version_option(VERSION, message="%(prog)s %(version)s", help="Print the version.")

the_site = click.option(
    "--site",
    metavar="NAME|PATH",
    shell_complete=site_names,
    help="Site name or file; default: CSRUN_SITE, or local.",
)

the_command = click.argument(
    "command", metavar="CMD...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command
)

in_format = click.option(
    "-o",
    "--output",
    type=Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)


in_format_or_csv = click.option(
    "-o",
    "--output",
    type=Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output format.",
)


def main(command: click.Command) -> NoReturn:
    """Run a console command with the process's command line, and exit with its exit code."""
    streams.prepare()
    os.umask(os.umask(0o077) & 0o077)  # otherwise a job could not read its own folder again
    code = run(command, sys.argv[1:])
    gc.freeze()  # the process exits: nothing needs to be freed
    sys.exit(code)


def run(command: click.Command, arguments: list[str]) -> int:
    """Run a command with a command line; return its exit code."""
    name = command.name or ""
    return exit_code_of(
        name, lambda: command.main(arguments, prog_name=name, standalone_mode=False)
    )


def exit_code_of(name: str, call: Callable[[], int]) -> int:
    """Call a part of a command; print an error in one line, and return the exit code."""
    try:
        code = call()
        sys.stdout.flush()  # at the interpreter's exit a full disk would not be reported
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.MissingParameter as error:
        usage = f"; usage: {_usage(error.ctx)}" if error.ctx else ""
        return _fail(name, f"{error.format_message().rstrip('.')}{usage}", error.exit_code)
    except click.ClickException as error:
        return _fail(name, error.format_message(), error.exit_code)
    except OutputError as error:
        if error.is_unread:
            return error.exit_code
        return _fail(name, str(error), error.exit_code)
    except CsrunError as error:
        return _fail(name, str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail(name, "interrupted", EXIT_INTERRUPTED)
    return code


def _usage(context: click.Context) -> str:
    """Return the command line of a command: its words, options and arguments."""
    return " ".join((context.command_path, *context.command.collect_usage_pieces(context)))


def split(folders: str) -> tuple[str, ...]:
    """Split the folders of an option A,B."""
    return tuple(filter(None, folders.split(",")))


def _fail(name: str, message: str, code: int) -> int:
    sys.stdout.flush()
    click.echo(f"{name}: error: {printable(brief(message))}", err=True)
    return code


Command = Callable[..., int]

_OUTPUT = (
    "File for the tasks' output, instead of the terminal. %j is the job's id, %x its name, %u the"
    " user; with %t (rank), %n (node number) or %N (node) there is one file per task or node."
)


def job_options(command: Command) -> Command:
    """Add the options of `JobOptions` to a command."""
    for option in (
        click.option("--output", metavar="FILE", help=_OUTPUT),
        click.option(
            "-J", "--job-name", metavar="NAME", help="Name of the job; default: the script's name."
        ),
        click.option(
            "-t",
            "--time-limit",
            "--time",
            metavar="TIME",
            help="End the job after M minutes, M:S, H:M:S, D-H or D-H:M:S; exit code 143.",
        ),
        click.option(
            "--job-labels",
            "job_labels",
            metavar="K=V,...",
            multiple=True,
            help="Labels of the job, for csctl get jobs -l K=V; repeatable.",
        ),
        click.option(
            "--slurm-option",
            "slurm_options",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="Slurm: an option for srun or sbatch, e.g. partition=big; repeatable.",
        ),
    ):
        command = option(command)
    return command


def job_options_of(
    time_limit: str | None,
    job_name: str | None,
    output: str | None,
    slurm_options: tuple[str, ...],
    job_labels: tuple[str, ...],
) -> "JobOptions":
    """Return the given options.

    Raises: UsageError for an invalid time limit, a name with several lines, or an invalid label
    """
    from csrun.base.errors import UsageError
    from csrun.jobs.job_labels import parse as parse_labels
    from csrun.jobs.time_limit import parse
    from csrun.launch import JobOptions

    if job_name is not None and not job_name.isprintable():
        raise UsageError(f"--job-name: must be one line of printable text, got {job_name!r}")
    limit_s = None if time_limit is None else parse(time_limit)
    return JobOptions(job_name, limit_s, output, slurm_options, parse_labels(job_labels))
