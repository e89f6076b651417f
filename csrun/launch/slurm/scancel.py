"""The end of a job that Slurm has, as scancel asks for it.

Source: scancel(1); it says only when it is told to be verbose why it did nothing
"""

import shutil
import subprocess

from csrun.base.errors import UsageError


def scancel(job: int) -> None:
    """Ask Slurm to end a job; its tasks finish what they do.

    Raises: UsageError when it will not: no such job, or someone else's
    """
    command = shutil.which("scancel")
    if command is None:
        raise UsageError("scancel: command not found: it must be in PATH to end a job of Slurm's")
    done = subprocess.run(
        (command, "--verbose", str(job)), capture_output=True, text=True, check=False
    )
    refusals = [line for line in done.stderr.splitlines() if "error:" in line]
    if refusals:
        raise UsageError(f"job {job}: {refusals[0].partition('error: ')[2]}")
