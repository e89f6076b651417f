"""cs: the admin shell of a site's CS systems."""

from typing import TYPE_CHECKING

import click

from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.cli.shell import Prompter, Shell
    from csrun.context.environment import LoginRole

NAME = "cs"


@click.command(NAME, context_settings=frame.SETTINGS, epilog=f"'{NAME} help' lists the commands.")
@frame.version
@click.option("--system", metavar="NAME", help="Name of the system; default: the site's first.")
@frame.the_site
@click.option(
    "--ssh-login",
    is_flag=True,
    help="Take command and role from sshd, which forces this command on a log-in.",
)
@click.argument("command", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def cs(command: tuple[str, ...], system: str | None, site: str | None, ssh_login: bool) -> int:
    """Show and change the CS systems of a site: one COMMAND, or the cs> prompt.

    If standard input is not a terminal, commands are read from it, one per line, up to the first
    that fails, whose exit code is returned.
    """
    from csrun.context.environment import LoginRole

    if not ssh_login:
        return _run(command, _shell(site, system, LoginRole.ADMIN))
    role, command = _login(command)
    return _run(command, _shell(site, system, role))


def _login(command: tuple[str, ...]) -> "tuple[LoginRole, tuple[str, ...]]":
    """Return role and command of a login; a client may begin the command with `cs`."""
    from csrun.cli.shell.command_loop import split
    from csrun.context.environment import ssh_login

    if command:
        raise click.UsageError("--ssh-login takes no command: sshd passes the one of the log-in")
    login = ssh_login()
    words = split(login.command or "")
    return login.role, tuple(words[1:] if words[:1] == [NAME] else words)


def _shell(site_name: str | None, system: str | None, role: "LoginRole") -> "Shell":
    from csrun.cli.shell import Shell
    from csrun.site import load

    site = load(site_name)
    return Shell(site, site.systems[0], role, _prompter()).on(system)


def _prompter() -> "Prompter":
    import sys

    from csrun.cli.shell.prompts import KeyPrompter, LinePrompter

    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return KeyPrompter() if is_terminal else LinePrompter()


def _run(command: tuple[str, ...], shell: "Shell") -> int:
    from csrun.cli.shell import LeaveShell, run_command
    from csrun.cli.shell.command_loop import prompt_for_lines, read_lines

    if not command:
        if not shell.prompter.is_terminal:
            return read_lines(shell)
        system = shell.system
        click.echo(f"{system.name} ({system.endpoint}) of site {shell.site.name}; try 'help'")
        return prompt_for_lines(shell)
    try:
        return run_command(command, shell)
    except LeaveShell:
        return 0


def main() -> None:
    frame.main(cs)


if __name__ == "__main__":
    main()
