"""What every command has in common: a mistake of the user's is one line and an exit code."""

import sys
from typing import Any, NoReturn

import click

from csrun.base.errors import CsrunError, OutputError
from csrun.cli import standard_streams
from csrun.cli.entry import EXIT_INTERRUPTED

SETTINGS: dict[str, Any] = {
    "allow_interspersed_args": False,  # what follows CMD belongs to it
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


def main(command: click.Command) -> NoReturn:
    """Be the console command, from the process's command line to its exit code."""
    standard_streams.prepare()
    sys.exit(run(command, sys.argv[1:]))


def run(command: click.Command, arguments: list[str]) -> int:
    """Run a command's command line; its exit code."""
    name = command.name or ""
    try:
        code: int = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()  # at the interpreter's exit nobody would hear of a full disk
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
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


def split(folders: str) -> tuple[str, ...]:
    """The folders of an option A,B."""
    return tuple(filter(None, folders.split(",")))


def _fail(name: str, message: str, code: int) -> int:
    sys.stdout.flush()
    click.echo(f"{name}: error: {message}", err=True)
    return code
