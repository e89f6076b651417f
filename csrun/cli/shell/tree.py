"""The tree of commands: `config execmode show`, `system standby`, and so on."""

import shlex
from collections.abc import Sequence

from csrun.base.errors import UsageError
from csrun.cli.shell.commands import help, power, session, status
from csrun.cli.shell.shell import Shell, Words

PROGRAM = "cs"

root = Words(
    PROGRAM,
    [
        Words("config", [Words("execmode", [power.show_mode, power.setup_mode], "Execution mode.")],
              "Configuration of a system."),
        Words("system", [status.show, status.status, *power.COMMANDS], "State of a system."),
        Words("software", [status.software], "Installed software."),
        Words("session", [session.listing, session.cancel], "Jobs on a system."),
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
