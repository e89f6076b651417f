"""Placement of a run: leased CS systems with the job's tasks, or this process."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from csrun import system
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import CSRunConfig
from csrun.context import SpawnWafer, TaskContext, interpreter_mode
from csrun.context.broadcast_tree import swarmx_tasks
from csrun.context.job import Hosts, LeaseLog
from csrun.estimator.layout_advice import LayoutAdvice
from csrun.estimator.progress import Show, progress_display, telemetry_published
from csrun.estimator.run import EstimatorRun
from csrun.executable import Executable, Plan, RunMode, state_layout
from csrun.records import checkpoints
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.machine import Machine
from csrun.runtime.input_log import Feeding
from csrun.runtime.roles.streamer import InProcessStreamer
from csrun.runtime.wire.messages import CheckpointSpace
from csrun.runtime.wire.rendezvous import RunFolder, memoryx_names, streamer_name, swarmx_name
from csrun.site import Site, System, streaming_single_task_nodes
from csrun.site import load as load_site

log = logging.getLogger("csrun")

NO_EFFECT = "has no effect without csrun_wse: running in this process on the CPU"


@dataclass(frozen=True)
class Target:
    """Systems that a run is compiled for and runs on.

    site: None on the CPU, which is compiled for as the first system of the site.
    others: systems that share each batch with `system`.
    is_open: no system was named, so an equal one may replace it.
    """

    context: TaskContext | None
    site: Site | None
    system: System
    mode: ExecutionMode
    is_open: bool = False
    others: tuple[System, ...] = ()

    @property
    def systems(self) -> tuple[System, ...]:
        """All systems of the run."""
        return self.system, *self.others


def target_of(run: EstimatorRun) -> Target:
    """Return the systems of a run as `find_target`, and check its number of MemoryX tasks.

    Raises: UsageError as `find_target`, and for another number of MemoryX tasks
    """
    asked, context = run.config.num_wgt_servers, run.context
    if asked is not None and context is not None and context.memoryx not in (0, asked):
        least = streaming_single_task_nodes(asked, len(context.swarmx))
        raise UsageError(
            f"num_wgt_servers must be the job's number of MemoryX tasks {context.memoryx}, got "
            f"{asked}: start it with csrun_wse --num-wgt-servers {asked}, and at least "
            f"--total-nodes {least + 1} --single-task-nodes {least}"
        )
    return find_target(context, run.config)


def find_target(context: TaskContext | None, config: CSRunConfig) -> Target:
    """Return the systems of a run, checked before anything runs.

    Raises: UsageError for an unknown system, one in the wrong mode, or too few systems
    """
    cs_ip = config.cs_ip
    if context is None or context.mode is None:
        if cs_ip is not None:
            log.warning(f"--cs_ip {cs_ip} {NO_EFFECT}")
        if config.num_csx > 1:
            log.warning(f"--num_csx {config.num_csx} {NO_EFFECT}")
        elif interpreter_mode() is ExecutionMode.WEIGHT_STREAMING:
            log.warning(f"python-ws {NO_EFFECT}")
        return Target(context, None, load_site().systems[0], ExecutionMode.PIPELINED)
    here, given = load_site(context.job.site), context.job.systems
    source = "cs_ip" if cs_ip else "the job's system"
    found = system.find(here, cs_ip or next(iter(given), None), context.mode, source)
    _require_given(context, found, config)
    is_open = cs_ip is None and not given
    others = system.choose_compatible(
        here, found, config.num_csx - 1, context.mode, given=[system.named(here, n) for n in given]
    )
    if others and context.job.hosts is Hosts.SEPARATE:
        _require_swarmx(context, config.num_csx)
    if cs_ip is None:
        _log_system(found, _reason(here, found, context.mode) if is_open else "the job's own")
    target = Target(context, here, found, context.mode, is_open, others)
    if others:
        log.info(f"{len(target.systems)} CS systems share each batch: {_names(target)}")
    return target


def _require_given(context: TaskContext, first: System, config: CSRunConfig) -> None:
    """Check that the scheduler has allocated the requested systems to the job."""
    given = context.job.systems
    if not given:
        return
    names = ", ".join(given)
    if first.name not in given:
        raise UsageError(
            f"cs_ip {config.cs_ip}: {first.name} is not allocated to the job, which has {names}: "
            "pass --cs_ip after the script on the command line of csrun_wse"
        )
    if config.num_csx > len(given) and context.mode is ExecutionMode.WEIGHT_STREAMING:
        raise UsageError(
            f"num_csx must be at most {len(given)}, the systems of the job ({names}), got "
            f"{config.num_csx}: pass --num_csx {config.num_csx} after the script on the command "
            "line "
            "of csrun_wse"
        )


def _require_swarmx(context: TaskContext, num_csx: int) -> None:
    """Check that a job on separate machines has the SwarmX tasks for this many systems."""
    needed, there = swarmx_tasks(num_csx), len(context.swarmx)
    if there >= needed:
        return
    least = streaming_single_task_nodes(context.memoryx, needed)
    raise UsageError(
        f"num_csx: {num_csx} CS systems need {needed} SwarmX tasks on separate nodes, the job has "
        f"{there}: pass --num_csx {num_csx} after the script on the command line of csrun_wse, and "
        f"at least --total-nodes {least + 1} --single-task-nodes {least}"
    )


def _names(target: Target) -> str:
    return ", ".join(each.name for each in target.systems)


def _log_system(taken: System, why: str) -> None:
    log.info(f"No --cs_ip given: using {taken.name} ({taken.address}), {why}")


def _reason(site: Site, taken: System, mode: ExecutionMode) -> str:
    if len(system.systems_in_mode(site, mode)) == 1:
        return f"the only system in {mode} mode"
    if not system.users_of(site, taken):
        return f"the first free system in {mode} mode"
    return f"the system in {mode} mode with the fewest jobs"


def compile_target(context: TaskContext | None, config: CSRunConfig) -> Target:
    """Return the systems of a compile without a run.

    In a job they are those of the run. Outside of a job, their mode and power state do not matter:
    the compile is for their geometry, in the mode of the interpreter.

    Raises: UsageError for an unknown system, or too few systems for a run
    """
    if context is not None and context.mode is not None:
        return find_target(context, config)
    here, mode = load_site(), interpreter_mode()
    found = system.find_for_compile(here, config.cs_ip, mode)
    others = system.choose_compatible(here, found, config.num_csx - 1, mode)
    log.info(f"Compiling for {found.name} ({found.address}) in {mode} mode")
    if system.load_state(here, found).mode is not mode:
        log.warning(f"{found.name} is not in {mode} mode; switch it before running this compile")
    return Target(context, None, found, mode, others=others)


def on_least_loaded(target: Target) -> Target:
    """Return the target on an equal system with fewer jobs, if there is one by now.

    The first choice was made before the compile; another job may have leased the system meanwhile.
    """
    site, mode = target.site, target.mode
    if site is None or not target.is_open:
        return target
    equal = [each for each in system.systems_in_mode(site, mode) if each.is_like(target.system)]
    freest = min((target.system, *equal), key=lambda each: system.users_of(site, each))
    if freest.name != target.system.name:
        _log_system(freest, _reason(site, freest, mode))
    others = system.choose_compatible(site, freest, len(target.others), mode)
    return replace(target, system=freest, others=others)


@dataclass(frozen=True)
class RunSpan:
    """Steps and batches of a run.

    first: first global step.
    last: first batch that is not used; None for all.
    data_order: order of the data set, sent to streamers.
    batch: number of the first batch, if it is not that of the step.
    """

    first: int
    last: int | None
    data_order: bytes = b""
    batch: int | None = None


@contextmanager
def machine_for(
    run: EstimatorRun, executable: Executable, target: Target, span: RunSpan
) -> Iterator[tuple[Machine, Show]]:
    """Load the Executable, ready to run, and yield it with its progress display."""
    target = on_least_loaded(target)
    in_job = target.context if target.site else None
    telemetry_dir, names = (
        in_job.telemetry_dir if in_job else None,
        tuple(s.name for s in target.systems),
    )
    with (
        progress_display(run.context) as show,
        loaded_machine(run, executable, target, span) as machine,
        telemetry_published(
            show, telemetry_dir, names, lambda: machine.arena_bytes
        ) as show_everywhere,
    ):
        yield machine, show_everywhere


@contextmanager
def loaded_machine(
    run: EstimatorRun, executable: Executable, target: Target, span: RunSpan
) -> Iterator[Machine]:
    """Load the Executable on its systems, leased for the time of the block, or in this process."""
    if target.site is None or target.context is None or run.folder is None:
        sram_bytes = target.system.sram_bytes
        first = span.first if span.batch is None else span.batch
        _warn_of_store_options(run, "in this process")
        yield CpuMachine(executable, run.dataset, run.settings, first, sram_bytes, run.is_pushed)
        return
    if executable.plan.store_in_arena:
        _warn_of_store_options(run, "in pipelined mode")
    holder = f"job {target.context.job.job_id}"
    uses = LeaseLog(target.context.telemetry_dir)
    with ExitStack() as stack:
        uses.record_request(*(each.name for each in target.systems))
        for lease in system.acquire_all(
            target.site, target.systems, target.mode, holder, _log_waiting
        ):
            stack.enter_context(lease)
        stack.enter_context(uses.record_lease())
        cluster = cluster_for(stack, run, target)
        request = run_request(run, executable, target, span)
        yield cluster.start(request, partial(_spawn_wafers, target, run.folder), log.info)


def _warn_of_store_options(run: EstimatorRun, where: str) -> None:
    """Warn that options of the weight store have no effect on a run without one."""
    config = run.config
    for name in ("weight_store", "weight_store_dir", "weight_store_memory", "num_wgt_servers"):
        if (value := getattr(config, name)) is not None:
            log.warning(
                f"runconfig.{name}: {value} has no effect {where}, which has no weight store: "
                "run it with csrun_wse and python-ws"
            )


def cluster_for(stack: ExitStack, run: EstimatorRun, target: Target) -> RunPeers:
    """Connect the peers of a run, including this process's streamer if it is one."""
    context = _context(target)
    if run.folder is None:
        raise ValueError("a cluster needs a job")
    cluster = RunPeers(run.folder)  # listens from here on; streamers wait for it without a timeout
    if context.rank in context.streamers:
        stack.enter_context(InProcessStreamer(run.folder, run.datasets))
    # exited first: that ends the streamer, which is joined afterwards
    return stack.enter_context(cluster)


def run_request(
    run: EstimatorRun, executable: Executable, target: Target, span: RunSpan
) -> RunRequest:
    """Return the request that starts a run on a cluster."""
    context = _context(target)
    nodes = (target.site or load_site(context.job.site)).nodes
    return RunRequest(
        executable,
        run.settings,
        span.first,
        span.last,
        Feeding(
            tuple(map(streamer_name, context.streamers)),
            options=LayoutAdvice.of(context.job, nodes).options_for,
            replayed=run.dataset.replayed,
        ),
        tuple(each.name for each in target.systems),
        target.system.usable_cores,
        target.system.sram_bytes,
        span.data_order,
        run.data,
        span.batch,
        checkpoint_space(run, executable.plan, span.first, span.last),
        memoryx_names(context.memoryx),
        tuple(map(swarmx_name, context.swarmx)),
        run.is_pushed,
        _parts(run, executable.plan),
    )


def _parts(run: EstimatorRun, plan: Plan) -> int:
    """Return the number of parts that streamers make of each batch: one for each replica."""
    if plan.replicas == 1 or run.is_pushed or run.dataset.in_parts(plan.replicas) is None:
        return 1
    return plan.replicas


def checkpoint_space(
    run: EstimatorRun, plan: Plan, first: int, last: int | None
) -> CheckpointSpace | None:
    """Estimate the disk space of a training's future checkpoints; None if it saves none."""
    if plan.run_mode is not RunMode.TRAIN:
        return None
    every, there = run.config.save_checkpoints_steps, len(checkpoints.kept_steps(run.model_dir))
    most = run.config.keep_checkpoint_max + 1  # the oldest is removed after the newest is complete
    if last is not None:
        initial = first == 0 and run.config.save_initial_checkpoint
        saves = initial + last // every - first // every + (last % every > 0)
        most = min(most, there + saves)
    count = max(0, most - there)
    nbytes = sum(place.nbytes for place in state_layout(plan).values())
    return CheckpointSpace(str(run.model_dir.absolute()), count, count * nbytes)


def _context(target: Target) -> TaskContext:
    if target.context is None:
        raise ValueError("a cluster needs a job")
    return target.context


def _log_waiting(name: str, obstacle: str) -> None:
    log.info(f"Waiting for {name}, {obstacle}")


def _spawn_wafers(target: Target, folder: RunFolder) -> None:
    link = _context(target).link()
    for each in target.systems:
        link.spawn_wafer(SpawnWafer(each.name, int(folder.path.name)))
    link.close()
