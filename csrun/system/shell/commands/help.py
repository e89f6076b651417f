"""help and exit."""

from collections.abc import Iterator

import click

from csrun.context.login import LoginRole
from csrun.system.shell.shell import LeaveShell, Shell


@click.command("help")
@click.pass_obj
def help_command(shell: Shell) -> None:
    """List the commands; `COMMAND --help` explains one."""
    root = click.get_current_context().find_root().command
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
