"""config execmode: the execution mode of a system, shown and chosen."""

import click

from csrun.base.mode import ExecutionMode
from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.system.change import change
from csrun.system.power import Command, apply
from csrun.system.state_files import load_state

LABELS: dict[str, str] = {
    ExecutionMode.PIPELINED: "Pipelined",
    ExecutionMode.WEIGHT_STREAMING: "Weight Streaming",
}
REMEDY = "give --mode"


@leaf("show")
def show(shell: Shell, output_format: str) -> None:
    """Show the configured execution mode."""
    state = load_state(shell.site, shell.system)
    reply.show({"configured_execution_mode": state.mode}, output_format)


@leaf("setup", changes=True)
@click.option(
    "--mode",
    type=click.Choice(list(ExecutionMode), case_sensitive=False),
    help="The mode; else it is asked for.",
)
@click.argument("words", nargs=-1, metavar="")
def setup(
    shell: Shell, output_format: str, mode: ExecutionMode | None, words: tuple[str, ...]
) -> None:
    """Choose the execution mode into which the system boots; it must be in STANDBY."""
    if words:
        raise click.UsageError(f"the mode is given by --mode: 'setup --mode {words[0]}'")
    before = load_state(shell.site, shell.system)
    apply(before, Command.CONFIGURE)  # refused before anything is asked
    if mode is None:
        question = "Select execution mode configuration:"
        mode = ExecutionMode(shell.asking.choose(question, LABELS, before.mode, REMEDY))
    state = change(shell.site, shell.system, Command.CONFIGURE, mode)
    if output_format == reply.JSON:
        reply.show({"configured_execution_mode": state.mode}, output_format)
    else:
        click.echo(f"Selected execution mode configuration: ✔ {LABELS[state.mode]}")
