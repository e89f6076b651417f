"""session list and cancel: the jobs on a system."""

import click
import msgspec

from csrun.cli.frame import WholeNumber
from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.jobs.overview import Session, SystemStatus, require_session, sessions_of
from csrun.launch import backend_of


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
    """End job JOB in order, and wait until it has ended, as 'csctl cancel job' does."""
    require_session(_status(shell), job)
    outcome = backend_of(shell.site).cancel(job)
    if output_format == reply.JSON:
        reply.show({"job": job, "outcome": outcome}, output_format)
    else:
        click.echo(f"job {job}: {outcome}")


def _sessions(shell: Shell) -> list[Session]:
    status = _status(shell)
    jobs = backend_of(shell.site).jobs() if status.job is not None or status.waiting else ()
    return sessions_of(status, {job.job_id: (job.name, job.user) for job in jobs})


def _status(shell: Shell) -> SystemStatus:
    known = {status.name: status for status in backend_of(shell.site).systems()}
    return known[shell.system.name]
