"""What is said in the mail of a Slurm job, beside what a fork server and its launcher say.

Times of attendants are of the wall clock, which the nodes of a cluster have in common.
"""

import msgspec

from csrun.context import JobFile, Progress, SpawnWafer
from csrun.launch.process.protocol import SignalTasks, StartTask, Stopped, TaskEnded


class TaskReady(msgspec.Struct, frozen=True, tag="task_ready"):
    """An attendant lives and has found the job's folder; `job_id` is Slurm's.

    `machine` is equal for tasks that can share memory and sockets, `address` is the IP address
    under which other nodes reach this one.
    """

    rank: int
    job_id: int
    node: str
    cpus: tuple[int, ...]
    machine: str
    address: str


class StartAll(msgspec.Struct, frozen=True, tag="start_all"):
    """Every planned task has reported in: start them. `shows_progress`: somebody would see it."""

    job: JobFile
    shows_progress: bool


class LetGo(msgspec.Struct, frozen=True, tag="let_go"):
    """Nothing of the job lives any more: end with the task's exit code."""


ToAttendants = StartAll | StartTask | SignalTasks | LetGo
FromAttendant = TaskReady | TaskEnded | SpawnWafer | Progress | Stopped
