"""session list and cancel: the jobs on a system."""

import click
import msgspec

from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.jobs.sessions import cancel as cancel_session
from csrun.jobs.sessions import sessions


@leaf("list")
def listing(shell: Shell, output_format: str) -> None:
    """List the job that holds the system, and those that wait for it."""
    found = [msgspec.structs.asdict(s) for s in sessions(shell.site, shell.system)]
    reply.show(found, output_format, f"{shell.system.name} has no sessions")


def _jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    shell = context.obj.on(context.params.get("system"))
    jobs = (str(s.job) for s in sessions(shell.site, shell.system))
    return [job for job in jobs if job.startswith(incomplete)]


@leaf("cancel", changes=True)
@click.argument("job", metavar="JOB", type=click.IntRange(min=1), shell_complete=_jobs)
def cancel(shell: Shell, output_format: str, job: int) -> None:
    """End job JOB in order, as Ctrl-C in its terminal would."""
    launcher = cancel_session(shell.site, shell.system, job)
    if output_format == reply.JSON:
        reply.show({"job": job, "launcher": launcher}, output_format)
    else:
        by = "by Slurm" if launcher is None else f"(process {launcher})"
        click.echo(f"job {job} was asked to end {by}")
