"""Arguments of srun and sbatch for a job's layout. Pure.

Source: srun(1), sbatch(1), heterogeneous jobs; `--kill-on-bad-exit` ends all components only if it
is set for the first one
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil

from csrun.jobs.request import JobOptions
from csrun.site import JobLayout

COMPONENT_SEPARATOR = ":"
NO_OPTIONS = JobOptions()
START = ("srun", "--unbuffered", "--kill-on-bad-exit")
_OF_AN_ALLOCATION = (
    "--exclusive",
    "--gres=",
    "--job-name=",
    "--signal=",
    "--time=",
)  # a step uses the resources of its job


@dataclass(frozen=True)
class Resources:
    """Options of a job besides its layout.

    alone_cpus: CPUs of a task with a node for itself; they include the wafer's.
    grace_s: time for the tasks to end; None if it does not matter.
    every: further arguments of each component.
    first: further arguments of the first component, for the whole job.
    by_component: arguments of each component in place of `every`, if any.
    """

    gres: str | None = None
    alone_cpus: int | None = None
    job_name: str | None = None
    time_limit_s: int | None = None
    grace_s: float | None = None
    every: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    by_component: tuple[tuple[str, ...], ...] = ()

    def arguments(self, component: int = 0) -> list[str]:
        """Return the options of a component besides its layout. Units: Slurm counts minutes

        Slurm's limit is later than the job's own, at which csrun ends the job in order: rounded up
        to a minute, plus the grace period. For another limit, such as its partition's, Slurm
        signals the job in advance.
        """
        arguments = [f"--job-name={self.job_name}"] if self.job_name else []
        grace_s = ceil(self.grace_s or 0)
        if self.time_limit_s:
            arguments += [f"--time={self.time_limit_s // 60 + 1 + max(1, ceil(grace_s / 60))}"]
        elif grace_s:
            arguments += [f"--signal=TERM@{grace_s}"]
        return [*arguments, *(self.by_component[component] if self.by_component else self.every)]


def srun_line(
    layout: JobLayout,
    command: tuple[str, ...],
    gres: str | None = None,
    label: bool = False,
    options: JobOptions = NO_OPTIONS,
) -> str:
    """Return one heterogeneous srun as text, in the original's form."""
    first, *others = _components(layout, Resources(gres=gres))
    first = [*option_arguments(options), *(["--label"] if label else []), *first]
    return shlex.join(_joined([first, *others], command))


def option_arguments(options: JobOptions) -> list[str]:
    """Return a job's options as arguments of srun and sbatch."""
    limit_s = options.time_limit_s or 0
    limit = f"{limit_s // 3600}:{limit_s // 60 % 60:02}:{limit_s % 60:02}"
    given = {
        "job-name": options.job_name,
        "time": limit if limit_s else None,
        "output": options.output,
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def srun_argv(layout: JobLayout, command: tuple[str, ...], resources: Resources) -> tuple[str, ...]:
    """Return the srun that requests nodes and starts `command` on them; components in rank
    order.
    """
    return _joined(_components(layout, resources), command)


def salloc_argv(layout: JobLayout, resources: Resources) -> tuple[str, ...]:
    """Return the salloc that requests the nodes of a job, for a shell in which the job can run."""
    return _joined(_components(layout, resources), (), ("salloc",))


def node_needs(layout: JobLayout, alone_cpus: int) -> list[tuple[int, int]]:
    """Return the number of nodes of each component of a job, and the CPUs needed on each."""
    full = layout.tasks_per_node * layout.cpus_per_task
    first = max(1, layout.single_task_nodes)
    single = [(1, alone_cpus if layout.single_task_nodes else full)] * first
    rest = layout.nodes - first
    return [*single, (rest, full)] if rest else single


def step_argv(
    layout: JobLayout, command: tuple[str, ...], resources: Resources, *, is_whole: bool = False
) -> tuple[str, ...]:
    """Return the srun that starts `command` on the nodes of an existing job.

    In a job without components the nodes are used in order, else those of each component. The
    number of tasks is given, since the default is that of the job.
    """
    nodes = [each for each, _ in node_needs(layout, 0)]
    components = _components(layout, replace(resources, every=(), first=(), by_component=()))
    kept = []
    for index, first in enumerate(accumulate(nodes[:-1], initial=0)):
        tasks = sum(layout.tasks_by_node[first : first + nodes[index]])
        arguments = [w for w in components[index] if not w.startswith(_OF_AN_ALLOCATION)]
        place = f"--relative={first}" if is_whole else f"--het-group={index}"
        kept.append([*([place] if len(nodes) > 1 else []), f"--ntasks={tasks}", *arguments])
    return _joined(kept, command)


def cpu_argv(
    command: tuple[str, ...],
    resources: Resources,
    output: str | None,
    gres_node: str | None,
    on_terminal: bool,
) -> tuple[str, ...]:
    """Return the srun that runs `command` alone on a node, but not on the CS systems' node."""
    terminal = ["--pty"] if on_terminal else []
    written = [f"--output={output}"] if output else []
    elsewhere = [f"--exclude={gres_node}"] if gres_node else []
    node = ["--nodes=1", "--ntasks=1", *elsewhere, "--exclusive"]
    asked = (*resources.arguments(), *resources.first)
    return ("srun", *terminal, *asked, *written, *node, *command)


def batch_script(
    layout: JobLayout,
    command: tuple[str, ...],
    resources: Resources,
    prolog: Iterable[str] = (),
) -> str:
    """Return a script for sbatch that requests a job's nodes and runs `command` on the first
    one.
    """
    first, *others = _components(layout, resources)
    own = _prolog(prolog)
    lines = ["#!/bin/bash -l" if own else "#!/bin/sh", *_directives(first)]
    for component in others:
        lines += ["#SBATCH hetjob", *_directives(component)]
    return "\n".join([*lines, *own, f"exec {shlex.join(command)}", ""])


def after_prolog(command: tuple[str, ...], prolog: Iterable[str]) -> tuple[str, ...]:
    """Return the command to start by srun if lines of bash precede it."""
    own = _prolog(prolog)
    if not own:
        return command
    return ("bash", "-lc", "\n".join([*own, 'exec "$@"']), "prolog", *command)


def _prolog(lines: Iterable[str]) -> list[str]:
    """Return lines that exit a failing script with an error message in csrun's form.

    A login shell runs them, because only that defines `module`. It waits for a second before it
    exits: srun may see an exit before it has read the output, and then drops the rest.
    """
    return [
        f"{line} || {{ echo {shlex.quote(f'csrun: prolog: {line}: failed')} >&2;"
        " sleep 1; exit 1; }"
        for line in lines
    ]


def in_container(
    command: tuple[str, ...], image: str | None, mounts: Iterable[str]
) -> tuple[str, ...]:
    """Return the command inside a container image with these folders; unchanged without an image.

    Source: apptainer-exec(1)
    """
    if image is None:
        return command
    folders = ",".join(dict.fromkeys(mounts))
    bound = ("-B", folders) if folders else ()
    return ("apptainer", "exec", *bound, image, *command)


def _directives(arguments: Iterable[str]) -> list[str]:
    # sbatch removes quotes as a shell does
    return [f"#SBATCH {shlex.quote(argument)}" for argument in arguments]


def _joined(
    components: Iterable[Iterable[str]], command: tuple[str, ...], start: tuple[str, ...] = START
) -> tuple[str, ...]:
    arguments: list[str] = []
    for component in components:
        arguments += [COMPONENT_SEPARATOR, *component] if arguments else [*start, *component]
    return (*arguments, *command)


def _components(layout: JobLayout, resources: Resources) -> list[list[str]]:
    placed = enumerate(_placed(layout, resources))
    first, *others = ([*resources.arguments(index), *arguments] for index, arguments in placed)
    return [[*resources.first, *first], *others]


def _placed(layout: JobLayout, resources: Resources) -> list[list[str]]:
    gres = [f"--gres={resources.gres}"] if resources.gres else []
    distribution = ["--distribution=cyclic"] if layout.cyclic else []
    full = _tasks(layout.tasks_per_node, layout.cpus_per_task)
    rest = layout.nodes - max(1, layout.single_task_nodes)
    last = [f"--nodes={rest}", *full, *distribution, "--exclusive"]
    if layout.nodes == 1:
        return [["--nodes=1", *full, *gres, *distribution, "--exclusive"]]
    if layout.single_task_nodes == 0:
        return [["--nodes=1", *full, *gres], last]
    single = ["--nodes=1", *_tasks(1, resources.alone_cpus)]
    chief = ["--exclusive", *single, *gres]
    return [chief, *([*single, "--exclusive"] for _ in range(layout.single_task_nodes - 1)), last]


def _tasks(tasks_per_node: int, cpus_per_task: int | None) -> list[str]:
    cpus = [] if cpus_per_task is None else [f"--cpus-per-task={cpus_per_task}"]
    return [f"--tasks-per-node={tasks_per_node}", *cpus]
