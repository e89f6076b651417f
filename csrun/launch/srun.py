"""A job's layout as the srun command that starts the same tasks on a cluster. Pure."""

import shlex
from collections.abc import Iterable

from csrun.launch.plan import Layout
from csrun.launch.request import JobOptions

COMPONENT_SEPARATOR = ":"
NO_OPTIONS = JobOptions()


def srun_line(
    layout: Layout,
    command: tuple[str, ...],
    gres: str | None = None,
    label: bool = False,
    options: JobOptions = NO_OPTIONS,
) -> str:
    """One heterogeneous srun: components in the order of their ranks, then the user's command.

    Source: srun(1); `--kill-on-bad-exit` ends all components only when the first one has it
    """
    first, *others = _components(layout, gres, label)
    words = ["srun", "--unbuffered", "--kill-on-bad-exit", *option_words(options), *first]
    for component in others:
        words += [COMPONENT_SEPARATOR, *component]
    return shlex.join([*words, *command])


def option_words(options: JobOptions) -> list[str]:
    """A job's options as srun and sbatch have them."""
    limit_s = options.time_limit_s or 0
    limit = f"{limit_s // 3600}:{limit_s // 60 % 60:02}:{limit_s % 60:02}"
    given = {
        "job-name": options.job_name,
        "time": limit if limit_s else None,
        "output": options.output,
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


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
