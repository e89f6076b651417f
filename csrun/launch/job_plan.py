"""Layout of a job: from a JobRequest to a JobPlan with each task's role, node and CPUs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.mode import GRACE_S, ExecutionMode
from csrun.context import Hosts, JobFile, Role, TaskEntry
from csrun.context.broadcast_tree import swarmx_tasks
from csrun.jobs.request import JobRequest
from csrun.launch.user_command import UserCommand
from csrun.site import JobLayout, Site, streaming_single_task_nodes


@dataclass(frozen=True)
class PlannedTask:
    """One task before nodes are allocated: `node_id` counts the job's own nodes from 0."""

    rank: int
    role: Role
    node_id: int
    local_rank: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class JobPlan:
    """Placement of each task; `mode` is None for a command that is not one of csrun's."""

    command: tuple[str, ...]
    mode: ExecutionMode | None
    layout: JobLayout
    tasks: tuple[PlannedTask, ...]
    grace_s: float = GRACE_S
    max_restarts: int = 0
    time_limit_s: int | None = None

    @property
    def system_mode(self) -> ExecutionMode | None:
        """Execution mode of the CS system; None if the job needs no system."""
        return None if UserCommand(self.command).preparation else self.mode

    @property
    def component_roles(self) -> tuple[Role, ...]:
        """Role for which each component of a Slurm job requests nodes: that of its first task."""
        first = max(1, self.layout.single_task_nodes)
        first_tasks = {task.node_id: task.role for task in reversed(self.tasks)}
        return tuple(first_tasks[node] for node in range(min(first + 1, self.layout.nodes)))

    def entries(
        self, node_names: tuple[str, ...], addresses: Mapping[str, str] | None = None
    ) -> tuple[TaskEntry, ...]:
        """Return the tasks on the allocated nodes, given in the order of node ids."""
        known, names = addresses or {}, [node_names[t.node_id] for t in self.tasks]
        return tuple(
            TaskEntry(t.rank, t.role, name, t.node_id, t.local_rank, t.cpus, known.get(name, ""))
            for t, name in zip(self.tasks, names, strict=True)
        )

    def job_file(
        self,
        site: str,
        working_dir: Path,
        job_id: int,
        node_names: tuple[str, ...],
        addresses: Mapping[str, str] | None = None,
        systems: tuple[str, ...] = (),
    ) -> JobFile:
        """Return the job file; nodes with addresses are separate machines.

        site: name or path by which the tasks load the site.
        """
        return JobFile(
            job_id=job_id,
            mode=self.mode,
            command=self.command,
            working_dir=str(working_dir),
            site=site,
            nodes=self.layout.nodes,
            cpus_per_task=self.layout.cpus_per_task,
            tasks=self.entries(node_names, addresses),
            systems=systems,
            hosts=Hosts.SEPARATE if addresses else Hosts.SHARED,
            grace_s=self.grace_s,
            max_restarts=self.max_restarts,
            time_limit_s=self.time_limit_s,
        )


def plan(
    request: JobRequest, site: Site, real_cpus: tuple[int, ...], *, is_cluster: bool = False
) -> JobPlan:
    """Lay out a job on a site whose nodes share the CPUs `real_cpus` of this machine.

    is_cluster: the nodes are separate machines, as nodes with addresses also are.

    Raises: UsageError for a layout that the site or the interpreter does not support
    """
    if request.foreground is not None:
        return _plan_command(request.command, site, real_cpus)
    command = UserCommand(request.command)
    mode = command.mode
    serving = _Serving()
    if mode is ExecutionMode.WEIGHT_STREAMING or request.num_wgt_servers:
        servers = command.num_wgt_servers(request.num_wgt_servers)
        # Wafers on one machine add gradients in shared memory; separate machines need SwarmX.
        spans_machines = is_cluster or bool(site.nodes.addresses)
        serving = _Serving(servers, _swarmx(command, site) if spans_machines else 0)
    layout = _resolve(request, site, mode, serving)
    tasks = _place(layout, mode, serving, site, real_cpus)
    return JobPlan(
        request.command,
        mode,
        layout,
        tasks,
        site.grace_s,
        request.max_restarts,
        request.options.time_limit_s,
    )


@dataclass(frozen=True)
class _Serving:
    """Number of MemoryX and SwarmX tasks, with one node each; 0 outside of weight streaming."""

    memoryx: int = 0
    swarmx: int = 0

    @property
    def named(self) -> list[str]:
        """Describe each kind with its number, if that is not one."""
        counts = (self.memoryx, "MemoryX"), (self.swarmx, "SwarmX")
        return [f"{n} {name} tasks" if n > 1 else name for n, name in counts if n]

    def role(self, rank: int) -> Role:
        """Return the role of a task of csrun's interpreters."""
        if rank == 0:
            return Role.CHIEF
        if rank <= self.memoryx:
            return Role.MEMORYX
        return Role.SWARMX if rank <= self.memoryx + self.swarmx else Role.STREAMER


def _swarmx(command: UserCommand, site: Site) -> int:
    """Return the number of SwarmX tasks for the number of CS systems in the command."""
    return swarmx_tasks(min(command.num_systems, len(site.systems)))


def _plan_command(command: tuple[str, ...], site: Site, real_cpus: tuple[int, ...]) -> JobPlan:
    """Plan a single task with a node for itself, for any command."""
    layout = JobLayout(1, 1, site.nodes.cpus, 0)
    return JobPlan(command, None, layout, (PlannedTask(0, Role.TASK, 0, 0, real_cpus),))


def _resolve(
    request: JobRequest, site: Site, mode: ExecutionMode | None, serving: _Serving
) -> JobLayout:
    nodes = request.total_nodes if request.total_nodes is not None else site.defaults.nodes
    single = request.single_task_nodes
    if nodes == 1 and UserCommand(request.command).preparation:
        mode = None  # a compile job has a chief and no peers
    if single is None:
        streaming = mode is ExecutionMode.WEIGHT_STREAMING
        least = streaming_single_task_nodes(serving.memoryx, serving.swarmx)
        single = least if streaming else 0
    _check_nodes(nodes, site)
    if mode is ExecutionMode.WEIGHT_STREAMING:
        _check_streaming(nodes, single, serving, request.command[0], site)
    _check_single_task_nodes(nodes, single)
    tasks, cpus = _tasks_and_cpus(request, site)
    return JobLayout(nodes, tasks, cpus, single, request.cyclic)


def _check_nodes(nodes: int, site: Site) -> None:
    if not 1 <= nodes <= site.nodes.count:
        raise UsageError(
            f"--total-nodes must be 1 to {site.nodes.count}, the nodes of site {site.name},"
            f" got {nodes}: use --total-nodes {min(max(nodes, 1), site.nodes.count)}"
        )


def _check_single_task_nodes(nodes: int, single: int) -> None:
    if single < 0 or single >= nodes:
        raise UsageError(
            f"--single-task-nodes must be 0 to {nodes - 1}, fewer than the {nodes} nodes of the"
            f" job, got {single}: use --single-task-nodes {max(0, min(single, nodes - 1))}"
        )


def _check_streaming(
    nodes: int, single: int, serving: _Serving, interpreter: str, site: Site
) -> None:
    least, named = streaming_single_task_nodes(serving.memoryx, serving.swarmx), serving.named
    if least + 1 > site.nodes.count:
        most = site.nodes.count - 2 - serving.swarmx
        swarmx = f", {serving.swarmx} SwarmX" if serving.swarmx else ""
        raise UsageError(
            f"--num-wgt-servers must be at most {most} on site {site.name}, got"
            f" {serving.memoryx}: its {site.nodes.count} nodes also run the chief{swarmx} and"
            " streamers"
        )
    if single < least:
        each = ", ".join(f"one for {'each of ' * (' ' in each)}{each}" for each in named)
        raise UsageError(
            f"--single-task-nodes must be at least {least} for {interpreter} (one for the chief,"
            f" {each}), got {single}: use --single-task-nodes {least} with --total-nodes"
            f" {max(nodes, least + 1)}, or drop the option"
        )
    if nodes < least + 1:
        raise UsageError(
            f"--total-nodes must be at least {least + 1} for {interpreter} (chief,"
            f" {', '.join(named)} and one node of streamers), got {nodes}: use --total-nodes"
            f" {least + 1}"
        )


def _tasks_and_cpus(request: JobRequest, site: Site) -> tuple[int, int]:
    tasks, cpus, have = request.tasks_per_node, request.cpus_per_task, site.nodes.cpus
    if tasks is None and cpus is None:
        tasks, cpus = site.defaults.tasks_per_node, site.defaults.cpus_per_task
    elif cpus is None and tasks is not None:
        # If only one option is given, the other keeps the site's default where that fits on a node.
        fits = tasks * site.defaults.cpus_per_task <= have
        cpus = site.defaults.cpus_per_task if fits else max(1, have // max(1, tasks))
    elif tasks is None and cpus is not None:
        tasks = max(1, have // max(1, cpus))
    assert tasks is not None
    assert cpus is not None
    _check_node_fits(tasks, cpus, have)
    return tasks, cpus


def _check_node_fits(tasks: int, cpus: int, have: int) -> None:
    if tasks < 1 or cpus < 1:
        raise UsageError(
            f"--tasks-per-node and --cpus-per-task must be at least 1, got {tasks} and {cpus}"
        )
    if tasks * cpus <= have:
        return
    possible = [f"--tasks-per-node {have // cpus}"] if cpus <= have else []
    possible += [f"--cpus-per-task {have // tasks}"] if tasks <= have else []
    possible = possible or [f"--tasks-per-node {have} --cpus-per-task 1"]
    raise UsageError(
        f"--tasks-per-node {tasks} with --cpus-per-task {cpus} needs {tasks * cpus} CPUs per node,"
        f" the site's nodes have {have}: use {' or '.join(possible)}"
    )


def _place(
    layout: JobLayout,
    mode: ExecutionMode | None,
    serving: _Serving,
    site: Site,
    real_cpus: tuple[int, ...],
) -> tuple[PlannedTask, ...]:
    tasks_on: dict[int, int] = {}
    placed, next_cpu = [], 0
    for rank, node_id in enumerate(layout.node_ids):
        local_rank = tasks_on.get(node_id, 0)
        tasks_on[node_id] = local_rank + 1
        alone = node_id < layout.single_task_nodes
        # The chief and MemoryX each have a node for themselves, and all of its CPUs.
        wanted = site.nodes.cpus if alone else layout.cpus_per_task
        cpus = cpu_set(real_cpus, next_cpu, wanted)
        role = Role.TASK if mode is None else serving.role(rank)
        placed.append(PlannedTask(rank, role, node_id, local_rank, cpus))
        next_cpu += wanted
    return tuple(placed)


def cpu_set(real_cpus: tuple[int, ...], first: int, wanted: int) -> tuple[int, ...]:
    """Map the job's nominal CPU i to real CPU i modulo their number."""
    count = min(wanted, len(real_cpus))
    return tuple(sorted(real_cpus[(first + i) % len(real_cpus)] for i in range(count)))
