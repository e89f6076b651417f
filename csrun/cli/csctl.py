"""csctl: the jobs, nodes and CS systems of a site, and the end of a job."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem

from csrun.base.choice import Choice
from csrun.base.safe_text import printable
from csrun.cli import frame
from csrun.cli.completion import job_ids

if TYPE_CHECKING:
    from csrun.jobs.overview import SystemStatus
    from csrun.jobs.usage import SystemUsed, Usage
    from csrun.launch.backend import Backend, JobStatus, NodeStatus

NAME = "csctl"
Row = TypeVar("Row")
SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
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
    """Give a command --since and --until."""
    for name, default in (("since", "the first known job"), ("until", "now")):
        text = f"{name.capitalize()} {_MOMENT} Default: {default}."
        command = click.option(f"--{name}", metavar="TIME", help=text)(command)
    return command


# As `csrun.launch.first_cause.who` names a task; "rank 0 (chief) on node1: ..."
_FAILED_TASK = re.compile(r"^rank (\d+) \((\w+)\) on \S+?(:?)(?= )")

JOB_ID = click.argument(
    "job_id", metavar="ID", type=frame.WholeNumber(1, 2**31 - 1), shell_complete=job_ids
)


@click.group(NAME, context_settings=frame.SETTINGS)
@frame.version
@click.option("--site", metavar="NAME|PATH", help="The site to ask; else CSRUN_SITE, else local.")
@click.pass_context
def csctl(context: click.Context, site: str | None) -> None:
    """Show a site's jobs, nodes and CS systems; read a job's logs, or end it."""
    context.obj = site


@csctl.group()
def get() -> None:
    """Show jobs, one job, nodes or systems."""


@get.command("jobs", context_settings=SETTINGS)
@click.option("-a", "--all", "all_states", is_flag=True, help="All known jobs, of any age.")
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
    """Waiting and running jobs, and the latest ended ones; with --since, all of that period."""
    from csrun.jobs.labels import matches
    from csrun.jobs.period import period_of

    period = period_of(since, until)
    has_period = bool(since or until)
    jobs = [
        job
        for job in _backend(site).jobs(all_states=all_states or has_period)
        if not has_period or period.overlaps(job.submitted, job.ended)
        if matches(job.labels, conditions)
    ]
    if output == "csv":
        return _show(jobs, output, CSV_HEADINGS, _csv_row)
    return _show(jobs, output, JOB_HEADINGS, _job_row, cut="why", droppable=DROPPABLE)


@get.command("job", context_settings=SETTINGS)
@JOB_ID
@frame.in_format
@click.pass_obj
def get_job(site: str | None, job_id: int, output: str) -> int:
    """Details of one job."""
    (job,) = _backend(site).jobs(job_id)
    if output == "json":
        _print_json(job)
    else:
        for key, value in job.details():
            click.echo(f"{key:<10} {printable(value)}")
    return 0


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

    uses = uses_of(_backend(site).records(), period_of(since, until))
    if each:
        return _show(uses, output, USE_HEADINGS, _use_row)
    return _show(totals(uses), output, USAGE_HEADINGS, _usage_row)


@get.command("nodes", context_settings=SETTINGS)
@frame.in_format
@click.pass_obj
def get_nodes(site: str | None, output: str) -> int:
    """Nodes, and the jobs on them."""
    return _show(_backend(site).nodes(), output, NODE_HEADINGS, _node_row)


@get.command("systems", context_settings=SETTINGS)
@frame.in_format
@click.pass_obj
def get_systems(site: str | None, output: str) -> int:
    """CS systems, with their running and waiting jobs."""
    return _show(_backend(site).systems(), output, SYSTEM_HEADINGS, _system_row)


@get.command("cluster", context_settings=SETTINGS)
@frame.in_format
@click.pass_obj
def get_cluster(site: str | None, output: str) -> int:
    """The site in numbers: systems, nodes, and jobs."""
    from csrun.launch.cluster import cluster_of
    from csrun.site import load

    known = load(site)
    found = cluster_of(known, _backend(site))
    if output == "json":
        _print_json(found)
    else:
        for key, value in found.details():
            click.echo(f"{key:<10} {printable(value)}")
    return 0


class _OfJobs(click.Group):
    """A group whose command `job` may be left out before a job's number: `cancel 1`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = ["job", *args] if args and args[0].isdecimal() else args
        return super().resolve_command(ctx, words)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*super().shell_complete(ctx, incomplete), *job_ids(ctx, None, incomplete)]


@csctl.group("cancel", cls=_OfJobs)
def cancel_group() -> None:
    """End a job: cancel ID, or cancel job ID."""


@cancel_group.command("job", context_settings=SETTINGS)
@JOB_ID
@click.pass_obj
def cancel_job(site: str | None, job_id: int) -> int:
    """End a waiting or running job gracefully, and wait until it has ended."""
    click.echo(f"job {job_id}: {_backend(site).cancel(job_id)}")
    return 0


@csctl.group("label", cls=_OfJobs)
def label_group() -> None:
    """Label a job: label ID k=v, or label job ID k=v."""


@label_group.command("job", context_settings=SETTINGS)
@JOB_ID
@click.argument("changes", metavar="K=V|K-...", nargs=-1, required=True)
@click.pass_obj
def label_job(site: str | None, job_id: int, changes: tuple[str, ...]) -> int:
    """Set labels of a job, k=v, or remove them, k-; print the job's labels."""
    from csrun.jobs.labels import text

    click.echo(f"job {job_id}: {text(_backend(site).label(job_id, changes)) or 'no labels'}")
    return 0


@csctl.group("wait", cls=_OfJobs)
def wait_group() -> None:
    """Wait for a job: wait ID, or wait job ID."""


@wait_group.command("job", context_settings=SETTINGS)
@JOB_ID
@click.option(
    "--for",
    "phase",
    type=Choice(["ended", "completed", "running"]),
    default="ended",
    show_default=True,
    help="Phase to wait for.",
)
@click.option("--timeout", metavar="TIME", help="Give up after M minutes, M:S, H:M:S or D-H.")
@click.pass_obj
def wait_job(site: str | None, job_id: int, phase: str, timeout: str | None) -> int:
    """Wait until a job ends, or runs; exit code 1 if it ends otherwise or the time is over.

    ended: exit code 0 however it ends. completed: 0 only if it ends well.
    """
    from csrun.jobs.time_limit import parse
    from csrun.launch.waiting import Phase, wait_for

    limit_s = None if timeout is None else parse(timeout, "--timeout")
    waited = wait_for(lambda: _backend(site).jobs(job_id)[0], Phase(phase), limit_s)
    click.echo(f"job {job_id}: {waited.job.state}")
    return 0 if waited.is_met else 1


@csctl.command("log-export", context_settings=SETTINGS)
@JOB_ID
@click.option("-o", "--output", metavar="FILE", help="Archive to write; else job_ID_logs.tar.gz.")
@click.pass_obj
def log_export(site: str | None, job_id: int, output: str | None) -> int:
    """Write an archive for a bug report: logs, plan, compile report, record, versions."""
    from pathlib import Path

    from csrun.launch.log_export import export

    path = Path(output or f"job_{job_id}_logs.tar.gz")
    backend = _backend(site)
    (job,) = backend.jobs(job_id)
    files = export(job, backend.folder(job_id), path)
    click.echo(f"{path}: {files} files of job {job_id}; look through them before you send them")
    return 0


@csctl.command(context_settings=SETTINGS)
@JOB_ID
@click.option(
    "--role",
    type=Choice(["chief", "memoryx", "streamer", "swarmx", "wafer", "task"]),
    help="Role whose logs to show; else those that csrun_wse shows.",
)
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the job ends.")
@click.pass_obj
def logs(site: str | None, job_id: int, role: str | None, follow: bool) -> int:
    """Show the output of a job's tasks; with several tasks, lines are prefixed with the rank."""
    from csrun.context import Role

    _backend(site).logs(job_id, None if role is None else Role(role), follow, _write)
    return 0


def _backend(site: str | None) -> "Backend":
    from csrun.launch import backend_of
    from csrun.site import load

    return backend_of(load(site))


def _show(
    found: "Sequence[Row]",
    output: str,
    headings: Sequence[str],
    row_of: "Callable[[Row], Sequence[str]]",
    cut: str | None = None,
    droppable: Sequence[str] = (),
) -> int:
    from csrun.cli import tables

    if output == "json":
        _print_json(found)
    elif output == "csv":
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerows([headings, *map(row_of, found)])
    else:
        tables.show(headings, map(row_of, found), cut, droppable)
    return 0


def _print_json(found: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(found)))


def _job_row(job: "JobStatus") -> Sequence[str]:
    from csrun.jobs.labels import text
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
        _in_short(job.why.partition("\n")[0]),
    )


def _csv_row(job: "JobStatus") -> Sequence[str]:
    from csrun.jobs.labels import text
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
        _in_short(job.why.partition("\n")[0]),
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


def _in_short(why: str) -> str:
    """The reason with whoever failed by role and rank alone, at a terminal: `streamer 3: ...`."""
    return _FAILED_TASK.sub(r"\2 \1\3", why) if sys.stdout.isatty() else why


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


def main() -> None:
    frame.main(csctl)


if __name__ == "__main__":
    main()
