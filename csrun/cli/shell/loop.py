"""The tree of commands, and many of them, one a line: from a pipe, or a person at the prompt."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from csrun.base.errors import CsrunError, OutputError, UsageError
from csrun.base.files import make_private
from csrun.cli.shell.commands import help, power, status
from csrun.cli.shell.shell import LeaveShell, Shell, Words
from csrun.context import state_dir

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

PROGRAM = "cs"
PROMPT = f"{PROGRAM}> "
EXIT_INTERRUPTED = 130
HISTORY = "cs_history"

root = Words(
    PROGRAM,
    [
        Words("config", [Words("execmode", [power.show_mode, power.setup_mode], "Execution mode.")],
              "Configuration of a system."),
        Words("system", [status.show, status.status, *power.COMMANDS], "State of a system."),
        Words("software", [status.software], "Installed software."),
        Words("session", [status.listing, status.cancel], "Jobs on a system."),
        status.telemetry,
        help.help_command,
        help.leave,
    ],
    "The admin shell of the CS systems.",
)  # fmt: skip


def run_command(words: Sequence[str], shell: Shell) -> int:
    """Do one command; its exit code.

    Raises: click.ClickException, CsrunError when it is wrong or fails; LeaveShell
    """
    code: int | None = root.main(list(words), prog_name=PROGRAM, standalone_mode=False, obj=shell)
    return code or 0


def split(line: str) -> list[str]:
    """The words of a line; quotes hold words together, and nothing else has a meaning.

    Raises: UsageError for a quote without its pair
    """
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()}: close the quote") from error


def read_lines(shell: Shell) -> int:
    """Do the commands that come on standard input, up to the first that fails; its exit code."""
    for line in iter(sys.stdin.readline, ""):
        try:
            code = _attempt(line, shell, f"{line.strip()}: ")
        except LeaveShell:
            return 0
        if code != 0:
            return code
    return 0


def prompt_for_lines(shell: Shell) -> int:
    """Ask for commands until the user leaves; a command that fails does not end the shell."""
    status = _session(shell)
    while True:
        try:
            for line in status.prompt().splitlines():  # several, where they were pasted
                if _attempt(line, shell) != 0:
                    break
        except KeyboardInterrupt:
            continue  # a line that the user has thought better of
        except (EOFError, LeaveShell):
            return 0


def _attempt(line: str, shell: Shell, where: str = "") -> int:
    """Do the command of a line, if there is one; its exit code, the reason of a failure printed."""
    try:
        words = split(line)
        return run_command(words, shell) if words else 0
    except click.ClickException as error:
        return _fail(where + error.format_message(), error.exit_code)
    except OutputError:
        raise
    except CsrunError as error:
        return _fail(where + str(error), error.exit_code)
    except click.Abort:
        return _fail(where + "interrupted", EXIT_INTERRUPTED)


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    click.echo(f"{PROGRAM}: error: {message}", err=True)
    return code


def _session(shell: Shell) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession

    from csrun.cli.shell.completer import TreeCompleter

    return PromptSession(
        PROMPT,
        history=_history(),
        completer=TreeCompleter(root, shell),
        complete_while_typing=False,
    )


def _history() -> "History":
    """The lines of all the user's shells; of this one alone where none can be kept."""
    from prompt_toolkit.history import InMemoryHistory

    from csrun.cli.shell.completer import LineHistory

    path = state_dir() / HISTORY
    try:
        make_private(path.parent)
        path.touch(mode=0o600)
    except (OSError, UsageError):
        return InMemoryHistory()
    return LineHistory(path)
