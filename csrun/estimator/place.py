"""Where a run takes place: a leased CS system with the job's tasks, or this process."""

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
from csrun.context.job import Hosts, UseLog
from csrun.estimator.layout import LayoutAdvice
from csrun.estimator.progress import Show, progress_display, telemetry_published
from csrun.estimator.run import Run
from csrun.executable import Executable, Plan, RunMode, state_layout
from csrun.records import checkpoints
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.machine import Machine
from csrun.runtime.chief.peers import Cluster, RunRequest
from csrun.runtime.input_log import Feeding
from csrun.runtime.roles.streamer import OwnStreamer
from csrun.runtime.wire.messages import CheckpointSpace
from csrun.runtime.wire.rendezvous import RunFolder, memoryx_names, streamer_name, swarmx_name
from csrun.site import Site, System, streaming_single_task_nodes
from csrun.site import load as load_site

log = logging.getLogger("csrun")

NO_EFFECT = "has no effect without csrun_wse: running in this process on the CPU"


@dataclass(frozen=True)
class Target:
    """What a run is compiled for and takes place on.

    site: None on the CPU, which stands for the first system of the site at hand. others: those that
    share each batch with it. is_open: nobody has named the system, so that another one of its kind
    does as well.
    """

    context: TaskContext | None
    site: Site | None
    system: System
    mode: ExecutionMode
    is_open: bool = False
    others: tuple[System, ...] = ()

    @property
    def systems(self) -> tuple[System, ...]:
        """All that the run takes place on."""
        return self.system, *self.others


def target_of(run: Run) -> Target:
    """The systems that the run will use; `find_target`, for a job of as many MemoryX tasks.

    Raises: UsageError for another number, too
    """
    asked, context = run.config.num_wgt_servers, run.context
    if asked is not None and context is not None and context.memoryx not in (0, asked):
        least = streaming_single_task_nodes(asked, len(context.swarmx))
        raise UsageError(
            f"num_wgt_servers: {asked} MemoryX tasks, and the job has {context.memoryx}: start it"
            f" with csrun_wse --num-wgt-servers {asked}, with at least --total-nodes {least + 1}"
            f" and --single-task-nodes {least}"
        )
    return find_target(context, run.config)


def find_target(context: TaskContext | None, config: CSRunConfig) -> Target:
    """The systems that the run will use, checked before anything runs.

    Raises: UsageError for an unknown system or one in the wrong mode, or for too few of them.
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
    others = system.others_like(
        here, found, config.num_csx - 1, context.mode, given=[system.named(here, n) for n in given]
    )
    if others and context.job.hosts is Hosts.SEPARATE:
        _require_swarmx(context, config.num_csx)
    if cs_ip is None:
        _say_taken(found, _why_taken(here, found, context.mode) if is_open else "the job's own")
    target = Target(context, here, found, context.mode, is_open, others)
    if others:
        log.info(f"{len(target.systems)} CS systems share each batch: {_names(target)}")
    return target


def _require_given(context: TaskContext, first: System, config: CSRunConfig) -> None:
    """Where a scheduler has given the job its systems, they are those that the run asks for."""
    given = context.job.systems
    if not given:
        return
    names = ", ".join(given)
    if first.name not in given:
        raise UsageError(
            f"cs_ip {config.cs_ip}: the job was given {names}, not {first.name}: name the"
            " system on the command line of csrun_wse, as --cs_ip after the script"
        )
    if config.num_csx > len(given) and context.mode is ExecutionMode.WEIGHT_STREAMING:
        raise UsageError(
            f"num_csx must be at most {len(given)}, got {config.num_csx}: the job was given {names}"
            f": give --num_csx {config.num_csx} among the words behind the script's name, by which"
            " csrun_wse asks for as many"
        )


def _require_swarmx(context: TaskContext, num_csx: int) -> None:
    """Between machines the tree of as many systems needs its tasks, each on a node of its own."""
    needed, there = swarmx_tasks(num_csx), len(context.swarmx)
    if there >= needed:
        return
    least = streaming_single_task_nodes(context.memoryx, needed)
    raise UsageError(
        f"num_csx: {num_csx} CS systems need SwarmX tasks where nodes are machines of their own: "
        f"{needed}, and the job has {there}: give --num_csx {num_csx} among the words behind the "
        f"script's name, by which csrun_wse lays it out, with at least --total-nodes {least + 1} "
        f"and --single-task-nodes {least}"
    )


def _names(target: Target) -> str:
    return ", ".join(each.name for each in target.systems)


def _say_taken(taken: System, why: str) -> None:
    log.info(f"No --cs_ip given: using {taken.name} ({taken.address}), {why}")


def _why_taken(site: Site, taken: System, mode: ExecutionMode) -> str:
    if len(system.in_mode(site, mode)) == 1:
        return f"the only system in {mode} mode"
    if not system.users_of(site, taken):
        return f"the first free system in {mode} mode"
    return f"the system in {mode} mode with the fewest jobs"


def compile_target(context: TaskContext | None, config: CSRunConfig) -> Target:
    """The system that a compile without a run is for.

    In a job it is the run's. Outside, where no run follows at once, its mode and power state do not
    matter: the compile is for its geometry, in the mode of the interpreter.

    Raises: UsageError for an unknown system, or where a run would have too few
    """
    if context is not None and context.mode is not None:
        return find_target(context, config)
    here, mode = load_site(), interpreter_mode()
    found = system.find_for_compile(here, config.cs_ip, mode)
    others = system.others_like(here, found, config.num_csx - 1, mode)
    log.info(f"Compiling for {found.name} ({found.address}) in {mode} mode")
    if system.load_state(here, found).mode is not mode:
        log.warning(f"{found.name} is not in {mode} mode now; it must be when this is to run")
    return Target(context, None, found, mode, others=others)


def on_freest(target: Target) -> Target:
    """The target on another system like its own, when fewer jobs have that or wait for it by now.

    The first choice was made before the compile, by whose end another job may have the system.
    """
    site, mode = target.site, target.mode
    if site is None or not target.is_open:
        return target
    alike = [each for each in system.in_mode(site, mode) if each.is_like(target.system)]
    freest = min((target.system, *alike), key=lambda each: system.users_of(site, each))
    if freest.name != target.system.name:
        _say_taken(freest, _why_taken(site, freest, mode))
    others = system.others_like(site, freest, len(target.others), mode)
    return replace(target, system=freest, others=others)


@contextmanager
def machine_for(
    run: Run,
    executable: Executable,
    target: Target,
    first: int,
    last: int | None,
    told: bytes = b"",
    batch: int | None = None,
) -> Iterator[tuple[Machine, Show]]:
    """The Executable loaded, ready to run from step `first`, and what shows how far that is.

    told: what streamers must know of the order of the run's data set. batch: the one that comes
    first, if its number is not the step's.
    """
    target = on_freest(target)
    in_job = target.context if target.site else None
    telemetry_dir, names = (
        in_job.telemetry_dir if in_job else None,
        tuple(s.name for s in target.systems),
    )
    with (
        progress_display(run.context) as show,
        loaded_machine(run, executable, target, first, last, told, batch) as machine,
        telemetry_published(
            show, telemetry_dir, names, lambda: machine.arena_bytes
        ) as show_everywhere,
    ):
        yield machine, show_everywhere


@contextmanager
def loaded_machine(
    run: Run,
    executable: Executable,
    target: Target,
    first: int,
    last: int | None,
    told: bytes,
    batch: int | None,
) -> Iterator[Machine]:
    """The Executable on its systems, which are leased meanwhile, or in this process."""
    if target.site is None or target.context is None or run.folder is None:
        sram_bytes = target.system.sram_bytes
        first = first if batch is None else batch
        _warn_of_resident(run, "in this process")
        yield CpuMachine(executable, run.dataset, run.settings, first, sram_bytes)
        return
    if executable.plan.store_in_arena:
        _warn_of_resident(run, "in pipelined mode")
    holder = f"job {target.context.job.job_id}"
    uses = UseLog(target.context.telemetry_dir)
    with ExitStack() as stack:
        uses.ask(*(each.name for each in target.systems))
        for lease in system.acquire_all(
            target.site, target.systems, target.mode, holder, _say_waiting
        ):
            stack.enter_context(lease)
        stack.enter_context(uses.held())
        cluster = cluster_for(stack, run, target)
        request = run_request(run, executable, target, first, last, told, batch)
        yield cluster.start(request, partial(_spawn_wafers, target, run.folder), log.info)


def _warn_of_resident(run: Run, where: str) -> None:
    """Tell who chose a place for the store that there is none."""
    config = run.config
    for name in ("weight_store", "weight_store_dir", "weight_store_memory", "num_wgt_servers"):
        if (value := getattr(config, name)) is not None:
            log.warning(
                f"runconfig.{name}: {value} has no effect {where}, where the weights are on the "
                "wafer: run it with csrun_wse and python-ws"
            )


def cluster_for(stack: ExitStack, run: Run, target: Target) -> Cluster:
    """The peers of the run, with the streamer of this process if it is one."""
    context = _context(target)
    if run.folder is None:
        raise ValueError("a cluster needs a job")
    cluster = Cluster(run.folder)  # listens from here on: a streamer waits for that without end
    if context.rank in context.streamers:
        stack.enter_context(OwnStreamer(run.folder, run.datasets))
    # left first: that ends the streamer, which is waited for
    return stack.enter_context(cluster)


def run_request(
    run: Run,
    executable: Executable,
    target: Target,
    first: int,
    last: int | None,
    told: bytes = b"",
    batch: int | None = None,
) -> RunRequest:
    """What a cluster must know of the run."""
    context = _context(target)
    nodes = (target.site or load_site(context.job.site)).nodes
    return RunRequest(
        executable,
        run.settings,
        first,
        last,
        Feeding(
            tuple(map(streamer_name, context.streamers)),
            options=LayoutAdvice.of(context.job, nodes).options_for,
            replayed=run.dataset.replayed,
        ),
        tuple(each.name for each in target.systems),
        target.system.usable_cores,
        target.system.sram_bytes,
        told,
        run.data,
        batch,
        checkpoint_space(run, executable.plan, first, last),
        memoryx_names(context.memoryx),
        tuple(map(swarmx_name, context.swarmx)),
    )


def checkpoint_space(run: Run, plan: Plan, first: int, last: int | None) -> CheckpointSpace | None:
    """What the training's checkpoints take besides those that are there; None where it has none."""
    if plan.run_mode is not RunMode.TRAIN:
        return None
    every, there = run.config.save_checkpoints_steps, len(checkpoints.kept_steps(run.model_dir))
    most = run.config.keep_checkpoint_max + 1  # the oldest goes when the newest is whole
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


def _say_waiting(name: str, obstacle: str) -> None:
    log.info(f"Waiting for {name}, {obstacle}")


def _spawn_wafers(target: Target, folder: RunFolder) -> None:
    link = _context(target).link()
    for each in target.systems:
        link.spawn_wafer(SpawnWafer(each.name, int(folder.path.name)))
    link.close()
