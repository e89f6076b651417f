"""Batch job of csrun that Slurm has requeued, for example after the loss of its first node.

Slurm only requeues the first component. The other components keep running, with the remains of the
job's first start. A new step gets the number of the old one, and is refused while that exists
(`Duplicate job step id`). The old node agents exit after missing their launcher for long enough.
This module waits for that, and cancels steps that remain.

Observed with Slurm 22.05.8.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from csrun.base.errors import CsrunError
from csrun.launch.slurm import orphaned_node, sinfo
from csrun.site import Site

MARGIN_S = 30.0  # beyond the time after which node agents exit
CANCEL_S = 60.0  # for Slurm to end cancelled steps
POLL_S = 1.0


def await_old_steps(
    job_id: int, site: Site, print_line: Callable[[str], None], resume: str
) -> None:
    """Wait until the steps of a job's earlier start have ended; cancel those that do not end.

    resume: command that submits the job again.

    Raises: CsrunError if they do not end, if a component has ended, or if Slurm does not answer
    """
    components = _components(job_id, site)
    if ended := [
        f"component {each.name} is {each.state}" for each in components if not each.is_running
    ]:
        raise _cannot(job_id, _list(ended), resume)
    numbers = [each.number for each in components]
    if not (steps := _steps(numbers, site)):
        return
    print_line(f"csrun_wse: job {job_id} was requeued: waiting for its old steps {_list(steps)}")
    left = _wait(numbers, site, orphaned_node.SILENCE_S + MARGIN_S)
    for step in left:
        print_line(f"csrun_wse: cancelling step {step}")
        with suppress(CsrunError):  # it has ended meanwhile
            sinfo.query(site, "scancel", step)
    if left and (left := _wait(numbers, site, CANCEL_S)):
        raise _cannot(job_id, f"old steps {_list(left)} are still running", resume)


def _wait(numbers: Sequence[str], site: Site, for_s: float) -> list[str]:
    """Wait up to a timeout; return the remaining steps."""
    until_s = time.monotonic() + for_s
    while (steps := _steps(numbers, site)) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    return steps


@dataclass(frozen=True)
class Component:
    """Component of a heterogeneous job: `7+1`, which is Slurm's job 8."""

    name: str
    number: str
    state: str

    @property
    def is_running(self) -> bool:
        """True if it has its nodes."""
        return self.state == "RUNNING"


def _components(job_id: int, site: Site) -> list[Component]:
    of_all = ("--noheader", "--states=all", f"--jobs={job_id}")
    text = sinfo.query(site, "squeue", *of_all, "--format=%i %A %T")
    return [Component(*line.split()) for line in text.splitlines()]


def _steps(numbers: Sequence[str], site: Site) -> list[str]:
    """Return the steps that srun has started in the components with these numbers, e.g. `8.0`."""
    jobs = f"--jobs={','.join(numbers)}"
    text = sinfo.query(site, "squeue", "--noheader", "--steps", jobs, "--format=%i")
    return [name for name in text.split() if name.rpartition(".")[2].isdigit()]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _cannot(job_id: int, why: str, resume: str) -> CsrunError:
    return CsrunError(
        f"job {job_id} was requeued but cannot continue: {why}; submit it again to resume from"
        f" its newest checkpoint:\n  {resume}"
    )
