"""system standby, activate, reboot, and config execmode: a system's power state and mode."""

import click

from csrun.base.choice import Choice
from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode
from csrun.cli.shell import progress_bars, reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.system.change import change, drain
from csrun.system.power import Command, Power, SystemState, apply
from csrun.system.state_files import load_state

LABELS: dict[str, str] = {
    ExecutionMode.PIPELINED: "Pipelined",
    ExecutionMode.WEIGHT_STREAMING: "Weight Streaming",
}
REMEDY = "give --mode"
_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_force = click.option(
    "--force", is_flag=True, help="Block new jobs, and wait for the running one to end."
)
_no_wait = click.option("--no-wait", is_flag=True, help="Do not wait for the boot to end.")


@leaf("standby", changes=True)
@_yes
@_force
def standby(shell: Shell, output_format: str, yes: bool, force: bool) -> None:
    """Put an idle system in standby, to configure it."""
    question = "This puts the system in standby. Do you want to proceed?"
    _show(shell, _interrupt(shell, Command.STANDBY, question, yes, force), output_format)


@leaf("activate", changes=True)
@_no_wait
def activate(shell: Shell, output_format: str, no_wait: bool) -> None:
    """Boot the system into its configured mode; it then accepts jobs."""
    state = change(shell.site, shell.system, Command.ACTIVATE)
    _show(shell, state if no_wait else _booted(shell, state), output_format)


@leaf("reboot", changes=True)
@_yes
@_force
@_no_wait
def reboot(shell: Shell, output_format: str, yes: bool, force: bool, no_wait: bool) -> None:
    """Reboot an active, idle system."""
    question = "This reboots the system. Do you want to proceed?"
    state = _interrupt(shell, Command.REBOOT, question, yes, force)
    _show(shell, state if no_wait else _booted(shell, state), output_format)


COMMANDS = (standby, activate, reboot)


def _interrupt(
    shell: Shell, command: Command, question: str, yes: bool, force: bool
) -> SystemState:
    """Change a system that accepts jobs, after confirmation, once no job uses it."""
    apply(load_state(shell.site, shell.system), command)  # refused before the user is asked
    if not yes and not shell.prompter.confirm(question, "give --yes"):
        raise CsrunError(f"not confirmed: {shell.system.name} is unchanged")
    if not force:
        return change(shell.site, shell.system, command)
    with progress_bars.draining(shell) as on_wait:
        return drain(shell.site, shell.system, command, on_wait)


def _booted(shell: Shell, state: SystemState) -> SystemState:
    """Return the state after the boot, which continues if the command is interrupted."""
    if state.power is Power.BOOTING:
        progress_bars.wait_for_boot(shell, state)
    return load_state(shell.site, shell.system)


def _show(shell: Shell, state: SystemState, output_format: str) -> None:
    if output_format == reply.JSON:
        facts = {"system": shell.system.name, "power": state.power, "mode": state.mode}
        reply.show(facts, output_format)
    else:
        click.echo(f"{shell.system.name} is {state.power} in {state.mode} mode")


@leaf("show")
def show_mode(shell: Shell, output_format: str) -> None:
    """Show the configured execution mode."""
    state = load_state(shell.site, shell.system)
    reply.show({"configured_execution_mode": state.mode}, output_format)


@leaf("setup", changes=True)
@click.option(
    "--mode",
    type=Choice(list(ExecutionMode), case_sensitive=False),
    help="Mode to set; asked for if omitted.",
)
@click.argument("words", nargs=-1, metavar="")
def setup_mode(
    shell: Shell, output_format: str, mode: ExecutionMode | None, words: tuple[str, ...]
) -> None:
    """Set the execution mode of a system in STANDBY; it boots into this mode."""
    if words:
        raise click.UsageError(f"unexpected argument {words[0]!r}: write 'setup --mode {words[0]}'")
    before = load_state(shell.site, shell.system)
    apply(before, Command.CONFIGURE)  # refused before the user is asked
    if mode is None:
        question = "Select execution mode configuration:"
        mode = ExecutionMode(shell.prompter.choose(question, LABELS, before.mode, REMEDY))
    state = change(shell.site, shell.system, Command.CONFIGURE, mode)
    if output_format == reply.JSON:
        reply.show({"configured_execution_mode": state.mode}, output_format)
    else:
        click.echo(f"Selected execution mode configuration: ✔ {LABELS[state.mode]}")
