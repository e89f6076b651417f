"""A job's layout as the srun command that starts the same tasks on a cluster. Pure."""

import shlex
from collections.abc import Iterable

from csrun.launch.plan import Layout

COMPONENT_SEPARATOR = ":"


def srun_line(
    layout: Layout, command: tuple[str, ...], gres: str | None = None, label: bool = False
) -> str:
    """One heterogeneous srun: components in the order of their ranks, then the user's command.

    Source: srun(1); `--kill-on-bad-exit` ends all components only when the first one has it
    """
    first, *others = _components(layout, gres, label)
    words = ["srun", "--unbuffered", "--kill-on-bad-exit", *first]
    for component in others:
        words += [COMPONENT_SEPARATOR, *component]
    return shlex.join([*words, *command])


def _components(layout: Layout, gres: str | None, label: bool) -> list[list[str]]:
    common = ["--label"] if label else []
    resource = [f"--gres={gres}"] if gres else []
    distribution = ["--distribution=cyclic"] if layout.cyclic else []
    full = _tasks(layout.tasks_per_node, layout.cpus_per_task)
    rest = layout.nodes - max(1, layout.single_task_nodes)
    last = [f"--nodes={rest}", *full, *distribution, "--exclusive"]
    if layout.nodes == 1:
        return [[*common, "--nodes=1", *full, *resource, *distribution, "--exclusive"]]
    if layout.single_task_nodes == 0:
        return [[*common, "--nodes=1", *full, *resource], last]
    single = ["--nodes=1", *_tasks(1)]
    chief = [*common, "--exclusive", *single, *resource]
    return [chief, *([*single, "--exclusive"] for _ in range(layout.single_task_nodes - 1)), last]


def _tasks(tasks_per_node: int, cpus_per_task: int | None = None) -> Iterable[str]:
    cpus = [] if cpus_per_task is None else [f"--cpus-per-task={cpus_per_task}"]
    return [f"--tasks-per-node={tasks_per_node}", *cpus]
