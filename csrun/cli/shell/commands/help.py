"""help and exit."""

from collections.abc import Iterator

import click

from csrun.cli.shell.shell import LeaveShell, Shell
from csrun.context.environment import LoginRole


def _words(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The words that may follow those of the command so far."""
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
    """What the shell's user may do, a line a command."""
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
    """All commands below a word, with the words that lead to them."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from leaves(below, f"{path} {name}".strip())
