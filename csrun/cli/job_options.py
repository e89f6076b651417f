"""The options that every command has which makes a job."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from csrun.launch import JobOptions

Command = Callable[..., int]

_OUTPUT = (
    "A file for what the tasks write, in the terminal's place. %j is the job's id, %x its name, %u"
    " the user; with %t (rank), %n (node's number) or %N (node) every task or node has its own."
)


def job_options(command: Command) -> Command:
    """Give a command the options, by the names of `JobOptions`."""
    for option in (
        click.option("--output", metavar="FILE", help=_OUTPUT),
        click.option("-J", "--job-name", metavar="NAME", help="The job's name; else the script's."),
        click.option(
            "-t",
            "--time-limit",
            "--time",
            metavar="TIME",
            help="End the job after M minutes, M:S, H:M:S, D-H or D-H:M:S; exit code 143.",
        ),
    ):
        command = option(command)
    return command


def make(time_limit: str | None, job_name: str | None, output: str | None) -> "JobOptions":
    """The options that were given.

    Raises: UsageError for a time limit that is none, or a name that is not one line of text
    """
    from csrun.base.errors import UsageError
    from csrun.jobs.time_limit import parse
    from csrun.launch import JobOptions

    if job_name is not None and not job_name.isprintable():
        raise UsageError(f"--job-name: must be one line of printable text, got {job_name!r}")
    limit_s = None if time_limit is None else parse(time_limit)
    return JobOptions(job_name, limit_s, output)
