"""Tree of commands of the admin shell, and loops over lines: from a pipe, or at the prompt."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from csrun.base.errors import EXIT_INTERRUPTED, CsrunError, OutputError, UsageError
from csrun.base.files import make_private
from csrun.cli.shell.commands import power_state, status
from csrun.cli.shell.shell import LeaveShell, Shell, ShellGroup
from csrun.context import state_dir
from csrun.context.environment import LoginRole

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History


def _words(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the words that may follow those of the command so far."""
    command: click.Command | None = context.find_root().command
    for word in context.params.get("command") or ():
        command = command.commands.get(word) if isinstance(command, click.Group) else None
    known = command.commands if isinstance(command, click.Group) else ()
    return [word for word in known if word.startswith(incomplete)]


@click.command("help")
@click.argument("command", metavar="[COMMAND...]", nargs=-1, shell_complete=_words)
@click.pass_context
def help_command(context: click.Context, command: tuple[str, ...]) -> None:
    """List the commands, or explain one."""
    top = context.find_root()
    if command:
        words = [*command, "--help"]
        top.command.main(words, top.info_name, standalone_mode=False, obj=context.obj)
    else:
        _list(top.command, context.obj)


def _list(root: click.Command, shell: Shell) -> None:
    """List the commands available to the shell's user, one per line."""
    rows = [
        (path, command.get_short_help_str(80))
        for path, command in leaves(root)
        if shell.role is LoginRole.ADMIN or not getattr(command, "changes", False)
    ]
    width = max(len(path) for path, _ in rows)
    for path, text in rows:
        click.echo(f"{path:{width}}  {text}")


@click.command("exit")
def leave() -> None:
    """Leave the shell."""
    raise LeaveShell


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Return all commands below a word, with the words that lead to them."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from leaves(below, f"{path} {name}".strip())


PROGRAM = "cs"
PROMPT = f"{PROGRAM}> "
HISTORY = "cs_history"

root = ShellGroup(
    PROGRAM,
    [
        ShellGroup("config", [
            ShellGroup(
                "execmode", [power_state.show_mode, power_state.setup_mode], "Execution mode."
            ),
        ], "Configuration of a system."),
        ShellGroup(
            "system", [status.show, status.status, *power_state.COMMANDS], "State of a system."
        ),
        ShellGroup("software", [status.software], "Installed software."),
        ShellGroup("session", [status.listing, status.cancel], "Jobs on a system."),
        status.telemetry,
        help_command,
        leave,
    ],
    "The admin shell of the CS systems.",
)  # fmt: skip


def run_command(words: Sequence[str], shell: Shell) -> int:
    """Run one command; return its exit code.

    Raises: click.ClickException, CsrunError if it is wrong or fails; LeaveShell
    """
    code: int | None = root.main(list(words), prog_name=PROGRAM, standalone_mode=False, obj=shell)
    return code or 0


def split(line: str) -> list[str]:
    """Split a line into words; quotes group words, and no other character is special.

    Raises: UsageError for an unmatched quote
    """
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()}: close the quote") from error


def read_lines(shell: Shell) -> int:
    """Run the commands on standard input, up to the first that fails; return its exit code."""
    for line in iter(sys.stdin.readline, ""):
        try:
            code = _attempt(line, shell, f"{line.strip()}: ")
        except LeaveShell:
            return 0
        if code != 0:
            return code
    return 0


def prompt_for_lines(shell: Shell) -> int:
    """Prompt for commands until the user leaves; a failed command does not end the shell."""
    status = _session(shell)
    while True:
        try:
            for line in status.prompt().splitlines():  # several lines, if they were pasted
                if _attempt(line, shell) != 0:
                    break
        except KeyboardInterrupt:
            continue  # Ctrl-C discards the line
        except (EOFError, LeaveShell):
            return 0


def _attempt(line: str, shell: Shell, where: str = "") -> int:
    """Run the command of a line, if any; print the reason of a failure, and return the exit
    code.
    """
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
    """Return the history of all of the user's shells; only of this one if no file can be
    written.
    """
    from prompt_toolkit.history import InMemoryHistory

    from csrun.cli.shell.completer import LineHistory

    path = state_dir() / HISTORY
    try:
        make_private(path.parent)
        path.touch(mode=0o600)
    except (OSError, UsageError):
        return InMemoryHistory()
    return LineHistory(path)
