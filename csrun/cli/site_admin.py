"""csrun site: checks, monitors and cleans up a site."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.jobs.retention import Leftover
    from csrun.launch.backend import Backend
    from csrun.launch.preflight.checks import CheckResult

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
FAILED = 1
CHECK_HEADINGS = ("check", "node", "result", "remedy")
CLEAN_HEADINGS = ("folder", "size", "ended")


@click.group(cls=frame.CommandGroup, context_settings=frame.SETTINGS)
def site() -> None:
    """Check, monitor and clean up the site."""


@site.command(context_settings=SETTINGS)
@frame.the_site
@frame.in_format
def check(site: str | None, output: str) -> int:
    """Check versions, folders, clocks, network, memory and limits on each node; exit code 0 or 1.

    On Slurm this runs as a job with one task per node, on the idle nodes.
    """
    import msgspec

    from csrun.cli import tables

    found = _backend(site).check()
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        tables.show(CHECK_HEADINGS, map(check_row, found), cut="remedy")
    return FAILED if any(each.has_failed for each in found) else 0


@site.command(context_settings=SETTINGS)
@frame.the_site
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to replace, e.g. of node_exporter's textfile collector; default: standard output.",
)
def metrics(site: str | None, output: Path | None) -> int:
    """Print metrics of systems, queues, jobs and failures in Prometheus text format."""
    from csrun.base.files import write_atomic
    from csrun.jobs import overview
    from csrun.launch.prometheus import exposition, site_metrics
    from csrun.site import load

    backend, known = _backend(site), load(site)
    runs = {system.name: overview.telemetry(known, system) for system in known.systems}
    found = site_metrics(backend.systems(), backend.jobs(), backend.records(), runs)
    text = exposition(found)
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomic(output, text.encode(), mode=0o644)  # read by node_exporter
    return 0


@site.command(context_settings=SETTINGS)
@frame.the_site
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
def clean(site: str | None, dry_run: bool) -> int:
    """Remove folders of your ended jobs by the limits of the site's `jobs` keys.

    This also happens whenever a job starts or ends.
    """
    from csrun.cli import tables
    from csrun.jobs import retention
    from csrun.site import load

    rule, folders = load(site).jobs, _backend(site).folders()
    gone = retention.expired_folders(folders, rule, with_size=True)
    if not dry_run:
        retention.prune(folders, rule)
    if gone:
        tables.show(CLEAN_HEADINGS, map(_clean_row, gone))
    total_mb = sum(each.size_bytes for each in gone) / 1e6
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{len(gone)} of {len(folders)} job folders {verb}, {total_mb:.1f} MB")
    return 0


def _backend(site: str | None) -> "Backend":
    from csrun.launch import backend_of
    from csrun.site import load

    return backend_of(load(site))


def check_row(result: "CheckResult") -> tuple[str, ...]:
    return result.check, result.node, f"{result.status}: {result.result}", result.remedy


def _clean_row(leftover: "Leftover") -> tuple[str, ...]:
    from datetime import UTC, datetime

    from csrun.jobs.time_limit import when

    ended = when(datetime.fromtimestamp(leftover.changed_s, UTC))
    return str(leftover.path), f"{leftover.size_bytes / 1e6:.1f} MB", ended
