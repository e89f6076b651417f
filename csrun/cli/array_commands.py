"""Commands of csctl on an array of jobs: show its results, cancel it."""

import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import click

from csrun.cli import frame
from csrun.cli.completion import array_ids
from csrun.cli.job_commands import SETTINGS, backend_at

if TYPE_CHECKING:
    from csrun.jobs.folder import JobFolder
    from csrun.jobs.record import Launcher

ARRAY_ID = click.argument(
    "array_id", metavar="ID", type=frame.WholeNumber(1, 2**31 - 1), shell_complete=array_ids
)


@click.command("array", context_settings=SETTINGS)
@ARRAY_ID
@frame.in_format_or_csv
@click.pass_obj
def get_array(site: str | None, array_id: int, output: str) -> int:
    """Results of an array: values, state, steps, loss, rate and model_dir of each element."""
    from csrun.cli.array_jobs import headings_of, row_of, show_rows
    from csrun.launch.array.array_file import read
    from csrun.launch.array.array_table import rows_of
    from csrun.site import load

    array = read(load(site), array_id)
    rows = rows_of(array, backend_at(site).jobs(all_states=True))
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
    elif output == "csv":
        import csv

        table = [headings_of(rows, is_short=False), *map(row_of, rows)]
        csv.writer(sys.stdout, lineterminator="\n").writerows(table)
    else:
        show_rows(rows)
    return 0


@click.command("array", context_settings=SETTINGS)
@ARRAY_ID
@click.pass_obj
def cancel_array(site: str | None, array_id: int) -> int:
    """End all jobs of an array gracefully; elements that have not started are dropped."""
    from csrun.base.errors import CsrunError
    from csrun.jobs.folder import JobFolder
    from csrun.launch.array.array_file import read
    from csrun.launch.array.array_table import active_jobs
    from csrun.site import load

    array, backend = read(load(site), array_id), backend_at(site)
    command = f"csctl cancel array {array_id}"
    found = active_jobs(array, backend.jobs(all_states=True))
    folders = [JobFolder(backend.folder(job_id)) for job_id in found]
    with frame.announced(f"array {array_id}: cancelling; its jobs may save checkpoints before"):
        if _end_launcher(array.launcher, load(site).grace_s, folders, command):
            click.echo(f"array {array_id}: cancelled")
            return 0
        for job_id in found:
            with suppress(CsrunError):  # it has ended just now
                click.echo(f"job {job_id}: {backend.cancel(job_id, command)}")
    if not found:
        click.echo(f"array {array_id}: no pending or running jobs")
    return 0


def _end_launcher(
    launcher: "Launcher", grace_s: float, folders: "list[JobFolder]", command: str
) -> bool:
    """Signal the csrun_wse that starts the elements, and wait until it has ended.

    folders: of its jobs, which it signals. command: that they are cancelled with.

    Returns False if it is not running.

    Raises: CsrunError if it is on another machine, or does not end
    """
    import select
    import signal
    import socket

    from csrun.base.errors import CsrunError
    from csrun.jobs.cancel import SPARE_S, open_process

    if launcher.host != socket.gethostname():
        return False
    process = open_process(launcher)
    if process is None:
        return False
    try:
        with ExitStack() as notes:
            for folder in folders:
                notes.enter_context(folder.recording_cancellation(command))
            signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:  # it has ended just now
        return False
    wait_s = grace_s + SPARE_S
    if not select.select([process], [], [], wait_s)[0]:
        raise CsrunError(
            f"csrun_wse (process {launcher.pid}) is still running {wait_s:.0f} s after SIGTERM;"
            " cancel the array again to kill its tasks"
        )
    return True
