"""Progress of slow commands: bars on a terminal, else a line or two."""

import errno
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from csrun.base.errors import OutputError
from csrun.cli.shell.shell import Shell
from csrun.context import Progress
from csrun.system.power import SystemState

TICK_S = 0.1


def wait_for_boot(shell: Shell, state: SystemState) -> None:
    """Wait until the system is ACTIVE; an interrupt does not stop its boot."""
    name, boot_s = shell.system.name, shell.system.boot_s
    click.echo(f"{name} is booting into {state.mode} mode", err=True)
    try:
        with _bar() as show:
            while (left_s := state.boot_ends - time.time()) > 0:
                show(Progress("booting", int(boot_s - left_s), int(boot_s) or 1, f"{left_s:.0f} s"))
                time.sleep(min(TICK_S, left_s))
    except KeyboardInterrupt:
        click.echo(f"{name} continues booting", err=True)
        raise


@contextmanager
def draining(shell: Shell) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the job that is waited for, and its progress.

    The function raises OutputError if its output has no reader: a login without a terminal gets no
    signal when it ends.
    """
    from csrun.jobs.overview import telemetry

    last = ""
    try:
        with _bar() as show:

            def on_wait(holder: str) -> None:
                nonlocal last
                _require_reader()
                if holder != last:
                    name = shell.system.name
                    click.echo(f"waiting for {holder}; {name} accepts no new jobs", err=True)
                    last = holder
                if (run := telemetry(shell.site, shell.system)) is not None:
                    show(Progress(f"{holder}: {run.run}", run.step, run.last_step or 0, run.detail))

            yield on_wait
    except KeyboardInterrupt:
        click.echo(f"cancelled: {shell.system.name} accepts jobs again", err=True)
        raise


def _require_reader() -> None:
    poll = select.poll()
    poll.register(sys.stdout, 0)  # errors and hang-ups are always reported
    if poll.poll(0):
        raise OutputError(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    if not sys.stdout.isatty():
        yield lambda progress: None
        return
    from csrun.context.terminal_bars import ProgressBars

    bars = ProgressBars()
    try:
        yield bars.update
    finally:
        bars.close()
