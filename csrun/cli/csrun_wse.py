"""csrun_wse: runs a command on the nodes of a site, with a CS system."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from csrun.cli import frame
from csrun.context import export_command

if TYPE_CHECKING:
    from csrun.launch import JobRequest
    from csrun.site import Site

NAME = "csrun_wse"
COUNT = frame.WholeNumber(min=1)
PRELOAD = ("csrun.estimator", "csrun.nn", "csrun.data", "csrun.params", "llvmlite.binding")


@click.command(NAME, context_settings=frame.SETTINGS)
@frame.version
@click.option("--total-nodes", type=COUNT, help="Nodes of the job, N.")
@click.option("--tasks-per-node", type=COUNT, help="Tasks on each node, T.")
@click.option("--cpus-per-task", type=COUNT, help="CPUs of each task, C.")
@click.option(
    "--single-task-nodes",
    type=frame.WholeNumber(min=0),
    help="Nodes with a single task, S: the job has S + (N-S) x T tasks.",
)
@click.option(
    "--num-wgt-servers",
    type=COUNT,
    help="MemoryX tasks, M, that share the weights (python-ws); needs S >= 1 + M.",
)
@click.option("--cyclic", is_flag=True, help="Distribute tasks to the nodes round-robin.")
@frame.the_site
@click.option(
    "--label", is_flag=True, help="Show all tasks' output, each line prefixed with its rank."
)
@click.option(
    "--max-restarts",
    type=frame.WholeNumber(min=0),
    default=0,
    metavar="N",
    help="Restart the tasks from the newest checkpoint after a failure, at most N times.",
)
@click.option("--sbatch", is_flag=True, help="Slurm: submit the job and do not wait for it.")
@click.option(
    "--compile-first", is_flag=True, help="Slurm: compile in a separate job, without a CS system."
)
@click.option("--new-job", is_flag=True, help="Slurm: from inside a job, submit a separate one.")
@click.option(
    "--detach", is_flag=True, help="Run the job in the background, also after log-out; see csctl."
)
@click.option(
    "--dry-run", is_flag=True, help="Show the layout of the tasks without running anything."
)
@click.option(
    "--array",
    metavar="SPEC",
    help="Run CMD once per index: 1-8, 1,3,5, 0-15:4, or 1-8%2 for at most two at once.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=V1,V2,...",
    multiple=True,
    help="With --array: values of a params key, or of an option of CMD; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON.")
@frame.job_options
@click.option("--mount-dirs", metavar="A,B", default="", help="Folders that tasks need to see.")
@frame.the_command
def csrun_wse(
    command: tuple[str, ...],
    site: str | None,
    dry_run: bool,
    as_json: bool,
    array: str | None,
    settings: tuple[str, ...],
    **given: Any,
) -> int:
    """Run CMD as the tasks of one job, or with --array as one job per index.

    The interpreter decides the execution mode: python-ws streams weights; python and python-pt
    (for PyTorch scripts) are layer pipelined. The site file sets the defaults.

    The tasks' output and errors go to standard output: the chief's for csrun's interpreters, all
    tasks' for another CMD. Messages of csrun_wse and the cause of a failure go to standard error.
    """
    from csrun.launch import launch
    from csrun.site import load

    if as_json and not dry_run:
        raise click.UsageError("--json needs --dry-run: add it, or drop --json")
    if settings and array is None:
        raise click.UsageError("--set needs --array; after the script's name it sets one value")
    request = _request_of(command, site, **given)
    if array is not None:
        from csrun.cli.array_jobs import run_array

        return run_array(request, load(site), array, settings, is_dry=dry_run, as_json=as_json)
    if dry_run:
        return _show_plan(request, load(site), as_json)
    return launch(request, load(site), lambda: click.echo(f"Launching: {shlex.join(command)}"))


def _request_of(
    command: tuple[str, ...],
    site: str | None,
    mount_dirs: str,
    time_limit: str | None,
    job_name: str | None,
    output: str | None,
    slurm_options: tuple[str, ...],
    job_labels: tuple[str, ...],
    **layout: Any,
) -> "JobRequest":
    """Return the request of a command line; layout: options by field name."""
    from csrun.launch import JobRequest
    from csrun.site import resolve

    return JobRequest(
        command=command,
        site=resolve(site),
        mount_dirs=frame.split(mount_dirs),
        preload=PRELOAD,
        options=frame.job_options_of(time_limit, job_name, output, slurm_options, job_labels),
        **layout,
    )


def _show_plan(request: "JobRequest", site: "Site", as_json: bool) -> int:
    from csrun.launch import dry_run

    plan = dry_run(request, site)
    if request.sbatch and not as_json:
        click.echo(plan.srun, nl=False)
    elif as_json:
        import msgspec

        click.echo(msgspec.json.encode(plan))
    else:
        from csrun.cli import tables

        tables.show_plan(plan)
    return 0


def main() -> None:
    export_command("csrun.cli.csrun_wse")
    frame.main(csrun_wse)


def run(arguments: list[str]) -> int:
    """Run the command line; return its exit code."""
    return frame.run(csrun_wse, arguments)


if __name__ == "__main__":
    main()
