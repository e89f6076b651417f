"""csctl: shows the jobs, nodes and CS systems of a site, and cancels jobs."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from csrun.base.choice import Choice
from csrun.base.safe_text import printable
from csrun.cli import frame, tables
from csrun.cli.array_commands import cancel_array, get_array
from csrun.cli.job_commands import (
    JOB_ID,
    SETTINGS,
    JobCommandGroup,
    backend_at,
    label,
    log_export,
    wait,
)

if TYPE_CHECKING:
    from csrun.jobs.overview import SystemStatus
    from csrun.jobs.usage import SystemUsed, Usage
    from csrun.launch.backend import JobStatus, NodeStatus
    from csrun.launch.site_numbers import SiteNumbers

NAME = "csctl"
Row = TypeVar("Row")
JOB_HEADINGS = (
    "job", "name", "type", "user", "phase", "nodes", "systems", "age", "duration", "labels", "why",
)  # fmt: skip
DROPPABLE = ("type", "user", "age", "labels", "nodes")
CSV_HEADINGS = (
    "job", "name", "user", "state", "nodes", "system", "submitted", "time", "why", "type", "labels",
)  # fmt: skip
NODE_HEADINGS = ("node", "state", "job", "cpus", "memory")
SYSTEM_HEADINGS = ("system", "address", "mode", "power", "available", "job", "waiting")

USE_HEADINGS = ("system", "job", "name", "user", "account", "began", "ended", "hours")
USAGE_HEADINGS = ("user", "account", "system", "jobs", "hours")
_MOMENT = "7d, 12h or 30m ago, or a time such as 2026-11-20 or 2026-11-20T08:30."


def in_period(command: Callable[..., int]) -> Callable[..., int]:
    """Add --since and --until to a command."""
    for name, default in (("until", "now"), ("since", "the first recorded job")):
        text = f"{name.capitalize()} {_MOMENT} Default: {default}."
        command = click.option(f"--{name}", metavar="TIME", help=text)(command)
    return command


class SiteAnywhere(frame.CommandGroup):
    """Group whose option --site may also follow its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = next((n for n, word in enumerate(args) if word.partition("=")[0] == "--site"), 0)
        end = at + (1 if args[at:] and "=" in args[at] else 2)
        if at and end <= len(args):
            args = [*args[at:end], *args[:at], *args[end:]]
        return super().parse_args(ctx, args)


@click.group(NAME, cls=SiteAnywhere, context_settings=frame.SETTINGS)
@frame.version
@frame.the_site
@click.pass_context
def csctl(context: click.Context, site: str | None) -> None:
    """Show a site's jobs, nodes and CS systems; read logs, wait for, label and cancel jobs."""
    context.obj = site


@csctl.group()
def get() -> None:
    """Show jobs, one job, an array, nodes or systems."""


@get.command("jobs", context_settings=SETTINGS)
@click.option("-a", "--all", "all_states", is_flag=True, help="All recorded jobs, of any age.")
@in_period
@click.option(
    "-l",
    "--label",
    "conditions",
    metavar="K=V,...",
    multiple=True,
    help="Jobs with these labels: k=v, k!=v or k; repeatable.",
)
@frame.in_format_or_csv
@click.pass_obj
def get_jobs(
    site: str | None,
    all_states: bool,
    since: str | None,
    until: str | None,
    conditions: tuple[str, ...],
    output: str,
) -> int:
    """Pending and running jobs, and the latest ended ones; with --since, all of that period."""
    from csrun.jobs.job_labels import matches
    from csrun.jobs.period import period_of

    period = period_of(since, until)
    has_period = bool(since or until)
    jobs = [
        job
        for job in backend_at(site).jobs(all_states=all_states or has_period)
        if not has_period or period.overlaps(job.submitted, job.ended)
        if matches(job.labels, conditions)
    ]
    if output == "csv":
        return _show(jobs, output, CSV_HEADINGS, _csv_row)
    if not jobs and output == "table":
        are_chosen = has_period or bool(conditions)
        return _note_none("no such jobs" if are_chosen else "no jobs", site)
    return _show(jobs, output, JOB_HEADINGS, _job_row, cut="why", droppable=DROPPABLE)


@get.command("job", context_settings=SETTINGS)
@JOB_ID
@frame.in_format
@click.pass_obj
def get_job(site: str | None, job_id: int, output: str) -> int:
    """Details of one job."""
    (job,) = backend_at(site).jobs(job_id)
    return _show_details(job, output)


@get.command("usage", context_settings=SETTINGS)
@in_period
@click.option("--each", is_flag=True, help="One row per use of a system, not per user.")
@frame.in_format_or_csv
@click.pass_obj
def get_usage(
    site: str | None, since: str | None, until: str | None, each: bool, output: str
) -> int:
    """Hours of CS system use, per user, account and system."""
    from csrun.jobs.period import period_of
    from csrun.jobs.usage import totals, uses_of

    uses = uses_of(backend_at(site).records(), period_of(since, until))
    if not uses and output == "table":
        return _note_none("no system was used in this period", site)
    if each:
        return _show(uses, output, USE_HEADINGS, _use_row)
    return _show(totals(uses), output, USAGE_HEADINGS, _usage_row)


@get.command("nodes", context_settings=SETTINGS)
@frame.in_format
@click.pass_obj
def get_nodes(site: str | None, output: str) -> int:
    """Nodes, and the jobs on them."""
    return _show(backend_at(site).nodes(), output, NODE_HEADINGS, _node_row)


@get.command("systems", context_settings=SETTINGS)
@frame.in_format
@click.pass_obj
def get_systems(site: str | None, output: str) -> int:
    """CS systems, with their running and pending jobs."""
    return _show(backend_at(site).systems(), output, SYSTEM_HEADINGS, _system_row)


@get.command("cluster", context_settings=SETTINGS)
@frame.in_format
@click.pass_obj
def get_cluster(site: str | None, output: str) -> int:
    """Numbers of systems, nodes and jobs by state."""
    from csrun.launch.site_numbers import cluster_of
    from csrun.site import load

    return _show_details(cluster_of(load(site), backend_at(site)), output)


@csctl.group("cancel", cls=JobCommandGroup)
def cancel_group() -> None:
    """Cancel a job: cancel ID, or cancel job ID; or all of an array: cancel array ID."""


@cancel_group.command("job", context_settings=SETTINGS)
@JOB_ID
@click.pass_obj
def cancel_job(site: str | None, job_id: int) -> int:
    """End a pending or running job gracefully, and wait until it has ended."""
    with frame.announced(f"job {job_id}: cancelling; a training saves a checkpoint before it ends"):
        ended = backend_at(site).cancel(job_id, "csctl cancel")
    click.echo(f"job {job_id}: {ended}")
    return 0


@csctl.command(context_settings=SETTINGS)
@JOB_ID
@click.option(
    "--role",
    type=Choice(["chief", "memoryx", "streamer", "swarmx", "wafer", "task"]),
    help="Role whose logs to show; default: those that csrun_wse shows.",
)
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the job ends.")
@click.pass_obj
def logs(site: str | None, job_id: int, role: str | None, follow: bool) -> int:
    """Show the output of a job's tasks; with several tasks, lines are prefixed with the rank."""
    from csrun.context import Role

    backend_at(site).logs(job_id, None if role is None else Role(role), follow, _write)
    return 0


def _show(
    found: "Sequence[Row]",
    output: str,
    headings: Sequence[str],
    row_of: "Callable[[Row], Sequence[str]]",
    cut: str | None = None,
    droppable: Sequence[str] = (),
) -> int:
    if output == "json":
        _print_json(found)
    elif output == "csv":
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerows([headings, *map(row_of, found)])
    else:
        tables.show(headings, map(row_of, found), cut, droppable)
    return 0


def _show_details(found: "JobStatus | SiteNumbers", output: str) -> int:
    if output == "json":
        _print_json(found)
    else:
        for key, value in found.details():
            click.echo(f"{key:<10} {printable(value)}")
    return 0


def _note_none(what: str, site: str | None) -> int:
    """Say on standard error that a table is empty, and of which site."""
    from csrun.site import load

    click.echo(f"{what} on site {load(site).name}", err=True)
    return 0


def _print_json(found: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(found)))


def _job_row(job: "JobStatus") -> Sequence[str]:
    from csrun.jobs.job_labels import text
    from csrun.jobs.time_limit import format_age, format_duration

    return (
        str(job.job_id),
        job.name,
        job.type,
        job.user,
        job.state,
        str(job.nodes),
        job.system,
        format_age(job.submitted),
        format_duration(job.elapsed_s),
        text(job.labels),
        tables.short_reason(job.why.partition("\n")[0]),
    )


def _csv_row(job: "JobStatus") -> Sequence[str]:
    from csrun.jobs.job_labels import text
    from csrun.jobs.time_limit import format_duration, when

    return (
        str(job.job_id),
        job.name,
        job.user,
        job.state,
        str(job.nodes),
        job.system,
        when(job.submitted),
        format_duration(job.elapsed_s),
        tables.short_reason(job.why.partition("\n")[0]),
        job.type,
        text(job.labels),
    )


def _use_row(use: "SystemUsed") -> Sequence[str]:
    from csrun.jobs.time_limit import when

    began, ended = when(use.began), when(use.ended)
    return (
        use.system,
        str(use.job),
        use.name,
        use.user,
        use.account,
        began,
        ended,
        f"{use.hours:.3f}",
    )


def _usage_row(total: "Usage") -> Sequence[str]:
    return total.user, total.account, total.system, str(total.jobs), f"{total.hours:.3f}"


def _node_row(node: "NodeStatus") -> Sequence[str]:
    jobs = ", ".join(map(str, node.job_ids))
    return node.name, node.state, jobs, str(node.cpus), f"{node.memory_gb} GiB"


def _system_row(system: "SystemStatus") -> Sequence[str]:
    job = "" if system.job is None else str(system.job)
    waiting = ", ".join(map(str, system.waiting))
    available = f"no ({system.unavailable})" if system.unavailable else "yes"
    return system.name, system.address, system.mode, system.power, available, job, waiting


def _write(data: bytes) -> None:
    sys.stdout.write(data.decode(errors="replace"))
    sys.stdout.flush()


for command in (label, log_export, wait):
    csctl.add_command(command)
get.add_command(get_array)
cancel_group.add_command(cancel_array)


def main() -> None:
    frame.main(csctl)


if __name__ == "__main__":
    main()
