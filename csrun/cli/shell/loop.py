"""Many commands, one a line: from a pipe, or from a person at the prompt."""

import sys
from typing import TYPE_CHECKING

import click

from csrun.base.errors import CsrunError, OutputError
from csrun.cli.shell.shell import LeaveShell, Shell
from csrun.cli.shell.tree import PROGRAM, root, run_command, split
from csrun.context import state_dir

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

PROMPT = f"{PROGRAM}> "
EXIT_INTERRUPTED = 130
HISTORY = "cs_history"


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
    session = _session(shell)
    while True:
        try:
            for line in session.prompt().splitlines():  # several, where they were pasted
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return LineHistory(path)
