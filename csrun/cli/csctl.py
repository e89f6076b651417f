"""csctl: the jobs, nodes and CS systems of a site, and the end of a job."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click

from csrun.cli import frame

if TYPE_CHECKING:
    from csrun.jobs.overview import NodeStatus, SystemStatus
    from csrun.jobs.record import JobRecord
    from csrun.launch.slurm.squeue import SlurmJob, SlurmNode
    from csrun.site import Site

NAME = "csctl"
Row = TypeVar("Row")
SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
JOB_HEADINGS = ("job", "name", "user", "state", "nodes", "system", "submitted", "time", "why")
NODE_HEADINGS = ("node", "state", "job", "cpus", "memory")
SYSTEM_HEADINGS = ("system", "address", "mode", "power", "job", "waiting")

in_format = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="As a table, or as JSON for a program.",
)
JOB_ID = click.argument("job_id", metavar="ID", type=click.IntRange(1, 2**31 - 1))


@click.group(NAME, context_settings=frame.SETTINGS)
@click.option("--site", metavar="NAME|PATH", help="The site to ask; else CSRUN_SITE, else local.")
@click.pass_context
def csctl(context: click.Context, site: str | None) -> None:
    """Show a site's jobs, nodes and CS systems; read a job's logs, or end it."""
    context.obj = site


@csctl.group()
def get() -> None:
    """Show jobs, one job, nodes or systems."""


@get.command("jobs", context_settings=SETTINGS)
@click.option("-a", "--all", "all_states", is_flag=True, help="All that are known, however old.")
@in_format
@click.pass_obj
def get_jobs(site: str | None, all_states: bool, output: str) -> int:
    """Jobs that wait or run, and the last ones that ended."""
    from csrun.jobs import overview

    if cluster := _cluster(site):
        from csrun.launch.slurm.squeue import jobs

        return _show(jobs(cluster), output, JOB_HEADINGS, _slurm_row)
    return _show(overview.jobs(_site(site), all_states), output, JOB_HEADINGS, _job_row)


@get.command("job", context_settings=SETTINGS)
@JOB_ID
@in_format
@click.pass_obj
def get_job(site: str | None, job_id: int, output: str) -> int:
    """All that is known of one job."""
    from csrun.jobs import overview

    if cluster := _cluster(site):
        from csrun.launch.slurm.squeue import job

        return _show([job(cluster, job_id)], output, JOB_HEADINGS, _slurm_row)
    record = overview.job(_site(site), job_id)
    if output == "json":
        _print_json(record)
    else:
        for key, value in _details(record):
            click.echo(f"{key:<10} {value}")
    return 0


@get.command("nodes", context_settings=SETTINGS)
@in_format
@click.pass_obj
def get_nodes(site: str | None, output: str) -> int:
    """Nodes, and the jobs that have them."""
    from csrun.jobs import overview

    if cluster := _cluster(site):
        from csrun.launch.slurm.squeue import nodes

        return _show(nodes(cluster), output, NODE_HEADINGS, _slurm_node_row)
    return _show(overview.nodes(_site(site)), output, NODE_HEADINGS, _node_row)


@get.command("systems", context_settings=SETTINGS)
@in_format
@click.pass_obj
def get_systems(site: str | None, output: str) -> int:
    """CS systems, the jobs that have them, and those that wait for them."""
    from csrun.jobs import overview

    if cluster := _cluster(site):
        from csrun.launch.slurm.squeue import systems

        return _show(systems(cluster), output, SYSTEM_HEADINGS, _system_row)
    return _show(overview.systems(_site(site)), output, SYSTEM_HEADINGS, _system_row)


@csctl.group("cancel")
def cancel_group() -> None:
    """End a job."""


@cancel_group.command("job", context_settings=SETTINGS)
@JOB_ID
@click.pass_obj
def cancel_job(site: str | None, job_id: int) -> int:
    """End a job that waits or runs, in order, and wait until it has ended."""
    from csrun.jobs.cancel import cancel

    if cluster := _cluster(site):
        from csrun.launch.slurm import squeue

        squeue.cancel(cluster, job_id)
        click.echo(f"job {job_id}: Slurm ends it")
        return 0
    record = cancel(_site(site).name, job_id)
    code = "" if record.exit_code is None else f", exit code {record.exit_code}"
    click.echo(f"job {job_id}: {record.state}{code}")
    return 0


@csctl.command(context_settings=SETTINGS)
@JOB_ID
@click.option(
    "--role",
    type=click.Choice(["chief", "memoryx", "streamer", "swarmx", "wafer", "task"]),
    help="Whose logs; else those that csrun_wse shows.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.pass_obj
def logs(site: str | None, job_id: int, role: str | None, follow: bool) -> int:
    """What a job's tasks have written, each line after its rank where there are several."""
    from csrun.context import Role
    from csrun.launch.process import job_logs

    wanted = None if role is None else Role(role)
    if cluster := _cluster(site):
        from csrun.launch.slurm import job_logs as slurm_logs

        slurm_logs.show(cluster, job_id, wanted, follow, _write)
        return 0
    job_logs.show(_site(site).name, job_id, wanted, follow, _write)
    return 0


def _site(name: str | None) -> "Site":
    from csrun.site import load

    return load(name)


def _cluster(name: str | None) -> "Site | None":
    """The site, if Slurm is its scheduler."""
    from csrun.site import Scheduler

    site = _site(name)
    return site if site.scheduler is Scheduler.SLURM else None


def _show(
    found: "Sequence[Row]",
    output: str,
    headings: Sequence[str],
    row_of: "Callable[[Row], Sequence[str]]",
) -> int:
    from csrun.cli import tables

    if output == "json":
        _print_json(found)
    else:
        tables.show(headings, map(row_of, found))
    return 0


def _print_json(found: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(found)))


def _job_row(job: "JobRecord") -> Sequence[str]:
    from csrun.jobs.overview import why
    from csrun.jobs.time_limit import format_duration

    return (
        str(job.job_id),
        job.name,
        job.user,
        job.state,
        str(job.nodes),
        job.system,
        _when(job.submitted),
        format_duration(job.elapsed_s),
        why(job).partition("\n")[0],
    )


def _slurm_row(job: "SlurmJob") -> Sequence[str]:
    from csrun.jobs.time_limit import format_duration

    time, submitted = format_duration(job.elapsed_s), _when(job.submitted)
    why = f"waits for {job.reason}" if job.reason and job.is_waiting else job.reason
    return (
        str(job.job_id), job.name, job.user, job.state, str(job.nodes), job.system, submitted,
        time, why,
    )  # fmt: skip


def _node_row(node: "NodeStatus") -> Sequence[str]:
    job = "" if node.job is None else str(node.job)
    return node.name, node.state, job, str(node.cpus), f"{node.memory_gb} GiB"


def _slurm_node_row(node: "SlurmNode") -> Sequence[str]:
    jobs = ", ".join(map(str, node.jobs))
    return node.name, node.state, jobs, str(node.cpus), f"{node.memory_gb} GiB"


def _system_row(system: "SystemStatus") -> Sequence[str]:
    job = "" if system.job is None else str(system.job)
    waiting = ", ".join(map(str, system.waiting))
    return system.name, system.address, system.mode, system.power, job, waiting


def _details(job: "JobRecord") -> Iterable[tuple[str, str]]:
    """What there is to say of a job, by its name."""
    import shlex

    from csrun.jobs.overview import why
    from csrun.jobs.time_limit import format_duration

    limit = "none" if job.time_limit_s is None else format_duration(job.time_limit_s)
    said = {
        "job": str(job.job_id),
        "name": job.name,
        "user": job.user,
        "state": job.state,
        "why": why(job),
        "exit code": "" if job.exit_code is None else str(job.exit_code),
        "command": shlex.join(job.command),
        "folder": job.working_dir,
        "tasks": f"{job.tasks} on {job.nodes} node{'s' * (job.nodes > 1)}",
        "nodes": ", ".join(job.node_names),
        "submitted": _when(job.submitted),
        "started": _when(job.started),
        "ended": _when(job.ended),
        "time": f"{format_duration(job.elapsed_s)}, limit {limit}",
        "output": job.output or "",
        "logs": job.logs or "",
        "launcher": f"process {job.launcher.pid} on {job.launcher.host}",
    }
    yield from ((key, value) for key, value in said.items() if value)
    for use in job.systems:
        taken = f"from {_when(use.taken)} to {_when(use.given_back) or '?'}"
        yield "system", f"{use.system} {taken if use.taken else 'was waited for'}"


def _when(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _write(data: bytes) -> None:
    sys.stdout.write(data.decode(errors="replace"))
    sys.stdout.flush()


def main() -> None:
    """The console command."""
    frame.main(csctl)


if __name__ == "__main__":
    main()
