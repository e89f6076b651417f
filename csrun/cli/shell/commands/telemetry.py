"""telemetry: the system and the run on it, as they are now."""

import time

import click

from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.jobs import sessions
from csrun.system.lease import holder
from csrun.system.state_files import load_state

REFRESH_S = 0.5
OF_A_RUN = ("run", "step", "last_step", "detail", "step_rate_per_s", "arena_bytes")


@leaf("telemetry")
@click.option("--once", is_flag=True, help="Show it once, and end.")
def telemetry(shell: Shell, output_format: str, once: bool) -> None:
    """Show power state, holder, step rate and arena; at a terminal live, until Ctrl-C."""
    if once or output_format == reply.JSON or not shell.asking.is_terminal:
        reply.show(_facts(shell), output_format)
    else:
        _watch(shell)


def _watch(shell: Shell) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if console.is_dumb_terminal:  # one that cannot write over what it has shown
        reply.show(_facts(shell), reply.TABLE)
        return
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(Text(reply.lines(_facts(shell))), refresh=True)
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            return


def _facts(shell: Shell) -> reply.Record:
    state = load_state(shell.site, shell.system)
    run = sessions.telemetry(shell.site, shell.system)
    return {
        "system": shell.system.name,
        "power": state.power,
        "mode": state.mode,
        "holder": holder(shell.site, shell.system),
        **{name: getattr(run, name, None) for name in OF_A_RUN},
        "sram_bytes": shell.system.sram_bytes,
        "age_s": max(0.0, time.time() - run.updated_s) if run else None,
    }
