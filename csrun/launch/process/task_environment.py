"""Environment variables of a task, as a table; the same names for any scheduler."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from csrun.context import JobFile, TaskEntry
from csrun.context import environment as names
from csrun.launch.user_command import UserCommand


@dataclass(frozen=True)
class TaskPlace:
    """Inputs of a task's environment variables."""

    job: JobFile
    job_dir: Path
    entry: TaskEntry

    @property
    def node_list(self) -> str:
        """Job's nodes in the order of their ids, each once."""
        return ",".join(dict.fromkeys(self._names_by_id()))

    @property
    def tasks(self) -> str:
        """Number of tasks of the job."""
        return str(len(self.job.tasks))

    @property
    def tasks_per_node(self) -> str:
        """Number of tasks of each node in Slurm's notation: `1(x2),8(x12)`."""
        runs = [(count, len([*same])) for count, same in groupby(self._counts_by_id())]
        return ",".join(f"{count}(x{nodes})" if nodes > 1 else f"{count}" for count, nodes in runs)

    @property
    def tasks_of_most_nodes(self) -> str:
        """Number of tasks of a multi-task node."""
        return str(self._counts_by_id()[-1])

    @property
    def ranks_here(self) -> str:
        """Ranks on the task's node."""
        node_id = self.entry.node_id
        return ",".join(str(task.rank) for task in self.job.tasks if task.node_id == node_id)

    @property
    def threads(self) -> str:
        """Number of BLAS threads: one for each real CPU that the task may use."""
        return str(len(self.entry.cpus))

    def _counts_by_id(self) -> list[int]:
        counts = Counter(task.node_id for task in self.job.tasks)
        return [counts[node_id] for node_id in sorted(counts)]

    def _names_by_id(self) -> list[str]:
        return [task.node for task in sorted(self.job.tasks, key=lambda task: task.node_id)]


Table = dict[str, Callable[[TaskPlace], str]]

SLURM_VARIABLES: Table = {
    "SLURM_JOB_ID": lambda place: str(place.job.job_id),
    names.RANK: lambda place: str(place.entry.rank),
    "SLURM_NTASKS": lambda place: place.tasks,
    "SLURM_NPROCS": lambda place: place.tasks,
    "SLURM_STEP_NUM_TASKS": lambda place: place.tasks,
    "SLURM_TASKS_PER_NODE": lambda place: place.tasks_per_node,
    "SLURM_STEP_TASKS_PER_NODE": lambda place: place.tasks_per_node,
    "SLURM_NTASKS_PER_NODE": lambda place: place.tasks_of_most_nodes,
    "SLURM_GTIDS": lambda place: place.ranks_here,
    "SLURM_LOCALID": lambda place: str(place.entry.local_rank),
    "SLURM_NODEID": lambda place: str(place.entry.node_id),
    "SLURM_NNODES": lambda place: str(place.job.nodes),
    "SLURM_JOB_NODELIST": lambda place: place.node_list,
    "SLURM_CPUS_PER_TASK": lambda place: str(place.job.cpus_per_task),
    "SLURMD_NODENAME": lambda place: place.entry.node,
}
VARIABLES: Table = {
    **SLURM_VARIABLES,
    names.JOB_DIR: lambda place: str(place.job_dir),
    names.SITE: lambda place: place.job.site,
    names.PREPARATION: lambda place: UserCommand(place.job.command).preparation or "",
    "OMP_NUM_THREADS": lambda place: place.threads,
    "OPENBLAS_NUM_THREADS": lambda place: place.threads,
    "MKL_NUM_THREADS": lambda place: place.threads,
    # The launcher reads the log while the task writes it.
    "PYTHONUNBUFFERED": lambda _: "1",
}


def task_variables(job: JobFile, job_dir: Path, entry: TaskEntry) -> dict[str, str]:
    """Return the variables of a task, which override those inherited from its launcher."""
    place = TaskPlace(job, job_dir, entry)
    return {name: value(place) for name, value in VARIABLES.items()}


def slurm_variables(job: JobFile, entry: TaskEntry) -> dict[str, str]:
    """Return only Slurm's variables, for a command on an allocated node without peers."""
    place = TaskPlace(job, Path(), entry)
    return {name: value(place) for name, value in SLURM_VARIABLES.items()}
