"""Commands of csctl on one job: its labels, waiting, its logs for a bug report."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from csrun.base.choice import Choice
from csrun.cli import frame
from csrun.cli.completion import job_ids

if TYPE_CHECKING:
    from csrun.launch.backend import Backend

SETTINGS = frame.SETTINGS | {"allow_interspersed_args": True}
JOB_ID = click.argument(
    "job_id", metavar="ID", type=frame.WholeNumber(1, 2**31 - 1), shell_complete=job_ids
)


def backend_at(site: str | None) -> "Backend":
    """Return the backend of a site."""
    from csrun.launch import backend_of
    from csrun.site import load

    return backend_of(load(site))


class JobCommandGroup(frame.CommandGroup):
    """Group whose subcommand `job` may be omitted before a job's number: `cancel 1`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = ["job", *args] if args and args[0][:1].isdecimal() else args
        return super().resolve_command(ctx, words)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*super().shell_complete(ctx, incomplete), *job_ids(ctx, None, incomplete)]


@click.group("label", cls=JobCommandGroup)
def label() -> None:
    """Label a job: label ID k=v, or label job ID k=v."""


@label.command("job", context_settings=SETTINGS)
@JOB_ID
@click.argument("changes", metavar="K=V|K-...", nargs=-1, required=True)
@click.pass_obj
def label_job(site: str | None, job_id: int, changes: tuple[str, ...]) -> int:
    """Set labels of a job, k=v, or remove them, k-; print the job's labels."""
    from csrun.jobs.job_labels import text

    click.echo(f"job {job_id}: {text(backend_at(site).label(job_id, changes)) or 'no labels'}")
    return 0


@click.group("wait", cls=JobCommandGroup)
def wait() -> None:
    """Wait for a job: wait ID, or wait job ID."""


@wait.command("job", context_settings=SETTINGS)
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
    """Wait for a phase of a job; exit code 1 if the job ends without it, or on a timeout.

    ended: the job has ended, successfully or not. completed: it has succeeded.
    """
    from csrun.base.errors import CsrunError
    from csrun.jobs.time_limit import parse
    from csrun.launch.waiting import AwaitedPhase, wait_for

    limit_s = None if timeout is None else parse(timeout, "--timeout")
    awaited = {"ended": "has ended", "completed": "has succeeded", "running": "runs"}[phase]
    with frame.announced(f"job {job_id}: waiting until it {awaited}"):
        waited = wait_for(lambda: backend_at(site).jobs(job_id)[0], AwaitedPhase(phase), limit_s)
    click.echo(f"job {job_id}: {waited.job.state}")
    if waited.is_met:
        return 0
    if waited.job.ended is None:
        raise CsrunError(f"job {job_id}: --timeout {timeout} is over, and it is {waited.job.state}")
    why = waited.job.why.partition("\n")[0]
    raise CsrunError(f"job {job_id}: ended as {waited.job.state}{why and f': {why}'}")


@click.command("log-export", context_settings=SETTINGS)
@JOB_ID
@click.option(
    "-o", "--output", metavar="FILE", help="Archive to write; default: job_ID_logs.tar.gz."
)
@click.pass_obj
def log_export(site: str | None, job_id: int, output: str | None) -> int:
    """Write an archive for a bug report: logs, plan, compile report, record, versions."""
    from csrun.launch.log_export import export

    path = Path(output or f"job_{job_id}_logs.tar.gz")
    backend = backend_at(site)
    (job,) = backend.jobs(job_id)
    files = export(job, backend.folder(job_id), path)
    click.echo(f"{path}: {files} files of job {job_id}; review them before you send them")
    return 0
