"""State and command classes of the admin shell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any

import click
from click.exceptions import NoSuchCommand

from csrun.base.choice import Choice
from csrun.base.errors import CsrunError
from csrun.cli.shell.prompts import Prompter
from csrun.cli.shell.reply import JSON, TABLE
from csrun.context.environment import LoginRole
from csrun.site import Site, System
from csrun.system.find import named


class LeaveShell(Exception):  # noqa: N818  an event, not an error
    """Raised to leave the shell."""


@dataclass(frozen=True)
class Shell:
    """Site, current system, user's role, and source of answers of a shell."""

    site: Site
    system: System
    role: LoginRole
    prompter: Prompter

    def on(self, system: str | None) -> "Shell":
        """Return the same shell for another system of the site.

        Raises: UsageError for an unknown one
        """
        return self if system is None else replace(self, system=named(self.site, system))

    def require_admin(self, command: str) -> None:
        """Check that this login may change a system.

        Raises: CsrunError
        """
        if self.role is not LoginRole.ADMIN:
            raise CsrunError(
                f"'{command}' changes {self.system.name}, and this log-in is read-only (role "
                f"{self.role}): ask an administrator of the system"
            )


class ShellGroup(click.Group):
    """Word that must be followed by another one."""

    def __init__(self, name: str, commands: Sequence[click.Command], help_text: str) -> None:
        super().__init__(name, commands, help=help_text, no_args_is_help=False)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but report an incomplete command with the words that may follow."""
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"'{self.name}' needs a subcommand: {self._known()}", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but list all known words if none is similar to an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            if error.possibilities:
                raise
            message = f"{error.message} Known: {self._known()}."
            raise NoSuchCommand(error.command_name, message, ctx=ctx) from error

    def _known(self) -> str:
        return ", ".join(self.commands)


class LeafCommand(click.Command):
    """Command without subcommands; `changes`: it changes a system."""

    changes = False


def leaf(name: str, *, changes: bool = False) -> Callable[[Callable[..., None]], LeafCommand]:
    """Decorator that makes a command of a function of the Shell, `output_format`, and its own
    options.

    Commands with `changes` are restricted to administrators.
    """

    def made(function: Callable[..., None]) -> LeafCommand:
        def run(shell: Shell, /, system: str | None, **options: Any) -> None:
            here = shell.on(system)
            if changes:
                here.require_admin(click.get_current_context().command_path.partition(" ")[2])
            function(here, **options)

        update_wrapper(run, function)
        command = click.command(name, cls=LeafCommand)(_common(click.pass_obj(run)))
        command.changes = changes
        return command

    return made


def _common(function: Callable[..., None]) -> Callable[..., None]:
    """Return the options of every leaf command."""
    system = click.option(
        "--system",
        metavar="NAME",
        shell_complete=_systems,
        help="Select another system of the site.",
    )
    output_format = click.option(
        "--output-format",
        type=Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        help="Output format.",
    )
    return system(output_format(function))


def _systems(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    names = (system.name for system in context.obj.site.systems)
    return [name for name in names if name.startswith(incomplete)]
