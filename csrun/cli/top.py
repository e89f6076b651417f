"""csrun top: systems, queue and one job, live on a terminal."""

import shutil
import sys
from typing import TYPE_CHECKING

import click

from csrun.cli import frame
from csrun.cli.completion import job_ids

if TYPE_CHECKING:
    from csrun.watch import SiteSnapshot

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
PIPE_COLUMNS = 100


@click.command("top", context_settings=SETTINGS)
@click.argument(
    "job_id",
    metavar="[JOB]",
    required=False,
    type=frame.WholeNumber(1, 2**31 - 1),
    shell_complete=job_ids,
)
@frame.the_site
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@frame.in_format
def top(job_id: int | None, site: str | None, once: bool, output: str) -> int:
    """Show systems, jobs, and one job's progress, tasks and log, live.

    Without JOB: your newest running job. Keys: arrows choose a job, l shows its log, c
    cancels it, q quits. Without a terminal, one frame is printed.
    """
    from csrun.launch import backend_of
    from csrun.site import load
    from csrun.watch import Collector

    known = load(site)
    backend = backend_of(known)
    collector = Collector(known, backend)
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(collector.snapshot(job_id))))
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print(collector.snapshot(job_id))
    else:
        from csrun.watch.live import show

        show(collector, lambda job: backend.cancel(job, "csrun top"), job_id)
    return 0


def _print(snapshot: "SiteSnapshot") -> None:
    from rich.console import Console
    from rich.segment import SegmentLines

    from csrun.watch.screen import frame as drawn

    console = Console(width=shutil.get_terminal_size((PIPE_COLUMNS, 0)).columns)
    with console.capture() as captured:
        console.print(SegmentLines(drawn(snapshot, console), new_lines=True))
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
