"""State and jobs of a system: system show and status, software show, telemetry, session list and
cancel.
"""

import platform
import time
from typing import TYPE_CHECKING

import click
import msgspec

from csrun.base.version import VERSION
from csrun.cli.frame import WholeNumber
from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.system.change import drainer
from csrun.system.lease import holder
from csrun.system.power import Power
from csrun.system.state_files import changing, load_state

if TYPE_CHECKING:  # commands that need the register and its scheduler read them
    from csrun.jobs.overview import SystemSession, SystemStatus

COMPUTES_WITH = ("numpy", "xdsl")
REFRESH_S = 0.5
OF_A_RUN = ("run", "step", "last_step", "detail", "step_rate_per_s", "arena_bytes")


@leaf("show")
def show(shell: Shell, output_format: str) -> None:
    """Show the system's address, fabric, memory and links."""
    system = shell.system
    facts: reply.Record = {
        "system": system.name,
        "site": shell.site.name,
        "address": system.endpoint,
        "fabric": f"{system.fabric_width} x {system.fabric_height}",
        "usable_cores": system.usable_cores,
        "sram_bytes": system.sram_bytes,
        "clock_hz": int(system.clock_hz),
        "io_gbit_per_s": system.io_gbit_per_s,
        "boot_s": system.boot_s,
    }
    reply.show(facts, output_format)


@leaf("status")
def status(shell: Shell, output_format: str) -> None:
    """Show the system's power state, mode, and the job on it."""
    state = load_state(shell.site, shell.system)
    with changing(shell.site, shell.system):
        drained_by = drainer(shell.site, shell.system)
    facts: reply.Record = {
        "system": shell.system.name,
        "power": state.power,
        "mode": state.mode,
        "holder": holder(shell.site, shell.system),
        "waiting_jobs": len(_users(shell).waiting),
        "drained_by": drained_by,
        "boot_left_s": state.boot_ends - time.time() if state.power is Power.BOOTING else None,
    }
    reply.show(facts, output_format)


@leaf("show")
def software(shell: Shell, output_format: str) -> None:
    """Show the versions of csrun, Python and the libraries used."""
    from importlib import metadata  # slow import, not needed by other commands

    versions = {"csrun": VERSION, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in COMPUTES_WITH}
    rows = [{"software": name, "version": version} for name, version in versions.items()]
    reply.show(rows, output_format)


@leaf("telemetry")
@click.option("--once", is_flag=True, help="Print one reading and exit.")
def telemetry(shell: Shell, output_format: str, once: bool) -> None:
    """Show power state, holder, step rate and arena; live at a terminal, until Ctrl-C."""
    if once or output_format == reply.JSON or not shell.prompter.is_terminal:
        reply.show(_facts(shell), output_format)
    else:
        _watch(shell)


def _watch(shell: Shell) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if console.is_dumb_terminal:  # a terminal that cannot redraw
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
    from csrun.jobs import overview

    state = load_state(shell.site, shell.system)
    run = overview.telemetry(shell.site, shell.system)
    return {
        "system": shell.system.name,
        "power": state.power,
        "mode": state.mode,
        "holder": holder(shell.site, shell.system),
        **{name: getattr(run, name, None) for name in OF_A_RUN},
        "sram_bytes": shell.system.sram_bytes,
        "age_s": max(0.0, time.time() - run.updated_s) if run else None,
    }


@leaf("list")
def listing(shell: Shell, output_format: str) -> None:
    """List the job that holds the system, and those that wait for it."""
    found = [msgspec.structs.asdict(session) for session in _sessions(shell)]
    reply.show(found, output_format, f"{shell.system.name} has no sessions")


def _jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    shell = context.obj.on(context.params.get("system"))
    jobs = (str(session.job) for session in _sessions(shell))
    return [job for job in jobs if job.startswith(incomplete)]


@leaf("cancel", changes=True)
@click.argument("job", metavar="JOB", type=WholeNumber(min=1), shell_complete=_jobs)
def cancel(shell: Shell, output_format: str, job: int) -> None:
    """Cancel job JOB gracefully, and wait until it has ended, as 'csctl cancel job' does."""
    from csrun.jobs.overview import require_session
    from csrun.launch import backend_of

    require_session(_users(shell), job)
    outcome = backend_of(shell.site).cancel(job, "cs> cancel")
    if output_format == reply.JSON:
        reply.show({"job": job, "outcome": outcome}, output_format)
    else:
        click.echo(f"job {job}: {outcome}")


def _sessions(shell: Shell) -> "list[SystemSession]":
    from csrun.jobs.overview import sessions_of
    from csrun.launch import backend_of

    users = _users(shell)
    jobs = backend_of(shell.site).jobs() if users.users else ()
    return sessions_of(users, {job.job_id: (job.name, job.user) for job in jobs})


def _users(shell: Shell) -> "SystemStatus":
    from csrun.launch import backend_of

    known = {status.name: status for status in backend_of(shell.site).systems()}
    return known[shell.system.name]
