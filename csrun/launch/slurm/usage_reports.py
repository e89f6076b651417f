"""Use of CPU and memory on a job's nodes, written by their agents while somebody asks for it.

Who watches a job touches a file in its folder every few seconds; an agent that finds the touch
recent measures its tasks. A job that nobody watches has no such work. Both are on the file system
that all nodes share.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.launch.process.task_usage import TaskUsage, measure

ASKED_FILE = "usage_asked"
REPORTS = "usage_{}.json"
ASKED_S = 15.0  # a touch is recent for so long: clocks of nodes differ, and NFS is late
EVERY_S = 2.0


class NodeUsage(msgspec.Struct, frozen=True):
    """`usage_<node_id>.json`: the tasks of one node. Units: taken_s in seconds since the epoch"""

    taken_s: float
    tasks: tuple[TaskUsage, ...]


class UsageReporter:
    """Reports of one node's agent."""

    def __init__(self, job_dir: Path, node_id: int) -> None:
        self._job_dir = job_dir
        self._path = job_dir / REPORTS.format(node_id)
        self._due_s = 0.0

    def turn(self) -> None:
        """Write a report if one is due and asked for; a full disk loses it."""
        now_s = time.time()
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        with suppress(OSError):
            if now_s - (self._job_dir / ASKED_FILE).stat().st_mtime < ASKED_S:
                tasks = tuple(measure(self._job_dir / "logs").values())
                stored.write(self._path, NodeUsage(now_s, tasks), durable=False)


def ask(job_dir: Path) -> None:
    """Have the agents of a job report for a while; not of another account's job."""
    with suppress(OSError):
        (job_dir / ASKED_FILE).touch()
        os.utime(job_dir / ASKED_FILE)


def reported(job_dir: Path) -> dict[str, TaskUsage]:
    """Recent reports of all nodes, by the tasks' names."""
    found: dict[str, TaskUsage] = {}
    for path in job_dir.glob(REPORTS.format("*")):
        with suppress(FileNotFoundError, CsrunError):
            report = stored.read(path, NodeUsage, "the use of CPU and memory")
            if time.time() - report.taken_s < ASKED_S:
                found |= {usage.name: usage for usage in report.tasks}
    return found
