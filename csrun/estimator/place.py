"""Where a run takes place: a leased CS system with the job's tasks, or this process."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from csrun import system
from csrun.advice.feed import drain
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import SpawnWafer, TaskContext, interpreter_mode
from csrun.context.job import SECRET_FILE
from csrun.context.system_uses import UseLog
from csrun.data import Dataset
from csrun.estimator.config import CSRunConfig
from csrun.estimator.layout import Layout
from csrun.executable import Executable
from csrun.records import log_lines
from csrun.runtime.roles.connections import Cluster, RunRequest
from csrun.runtime.roles.cpu import CpuMachine
from csrun.runtime.roles.machine import Machine
from csrun.runtime.roles.streamer import OwnStreamer
from csrun.runtime.wire.rendezvous import RunFolder
from csrun.site import Site, System
from csrun.site import load as load_site

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Target:
    """What a run is compiled for and takes place on.

    site: None on the CPU, which stands for the first system of the site at hand.
    """

    context: TaskContext | None
    site: Site | None
    system: System
    mode: ExecutionMode


def find_target(context: TaskContext | None, cs_ip: str | None) -> Target:
    """The system that the run will use, checked before anything runs.

    Raises: UsageError for an unknown system or one in the wrong mode.
    """
    if context is None or context.mode is None:
        if cs_ip is not None:
            log.warning(log_lines.without_launcher(f"--cs_ip {cs_ip}"))
        elif interpreter_mode() is ExecutionMode.WEIGHT_STREAMING:
            log.warning(log_lines.without_launcher("python-ws"))
        return Target(context, None, load_site().systems[0], ExecutionMode.PIPELINED)
    here = load_site(context.job.site)
    source = "cs_ip" if cs_ip else "the job's system"
    found = system.find(here, cs_ip or context.job.system, context.mode, source)
    if context.job.system not in (None, found.name):
        raise UsageError(
            f"cs_ip {cs_ip}: the job was given {context.job.system}, not {found.name}: name the"
            " system on the command line of csrun_wse, as --cs_ip after the script"
        )
    if cs_ip is None:
        log.info(log_lines.system_taken(found.name, found.address, context.mode))
    return Target(context, here, found, context.mode)


def compile_target(context: TaskContext | None, cs_ip: str | None) -> Target:
    """The system that a compile without a run is for.

    In a job it is the run's. Outside, where no run follows at once, its mode and power state do not
    matter: the compile is for its geometry, in the mode of the interpreter.

    Raises: UsageError for an unknown system
    """
    if context is not None and context.mode is not None:
        return find_target(context, cs_ip)
    here, mode = load_site(), interpreter_mode()
    found = system.find_for_compile(here, cs_ip, mode)
    log.info(log_lines.compiling_for(found.name, found.address, mode))
    if system.load_state(here, found).mode is not mode:
        log.warning(log_lines.not_in_mode(found.name, mode))
    return Target(context, None, found, mode)


def fed_by_streamers(
    executable: Executable,
    dataset: Dataset,
    config: CSRunConfig,
    target: Target,
    folder: RunFolder,
    seconds: float,
) -> tuple[int, float]:
    """What this job's streamers deliver in so many seconds, without a system: samples, seconds."""
    with ExitStack() as stack:
        cluster = _cluster(stack, dataset, target, folder)
        request = _request(executable, dataset, config, 0, None, target)
        fed = drain(cluster.feed(request), seconds)
        cluster.stop({})
    return fed


@contextmanager
def loaded_machine(
    executable: Executable,
    dataset: Dataset,
    config: CSRunConfig,
    first: int,
    last: int | None,
    target: Target,
    folder: RunFolder | None,
) -> Iterator[Machine]:
    """The Executable, loaded and ready to run from step `first`; the system is leased meanwhile."""
    if target.site is None or target.context is None or folder is None:
        yield CpuMachine(executable, dataset, config.seed, first, config.check_numerics)
        return
    holder = f"job {target.context.job.job_id}"
    uses = UseLog(target.context.job_dir)
    with ExitStack() as stack:
        waiting = _say_waiting(target.system.name)
        uses.ask(target.system.name)
        lease = system.acquire(target.site, target.system, target.mode, holder, waiting)
        stack.enter_context(lease)
        stack.enter_context(uses.held())
        cluster = _cluster(stack, dataset, target, folder)
        request = _request(executable, dataset, config, first, last, target)
        yield cluster.start(request, lambda: _spawn_wafer(target, folder), log.info)


def _cluster(stack: ExitStack, dataset: Dataset, target: Target, folder: RunFolder) -> Cluster:
    """The peers of the run, with the streamer of this process if it is one."""
    context = _context(target)
    cluster = Cluster(folder)  # listens from here on: a streamer waits for that without end
    if context.rank in context.streamers:
        stack.enter_context(OwnStreamer(folder, dataset))
    # left first: that ends the streamer, which is waited for
    return stack.enter_context(cluster)


def _request(
    executable: Executable,
    dataset: Dataset,
    config: CSRunConfig,
    first: int,
    last: int | None,
    target: Target,
) -> RunRequest:
    context = _context(target)
    nodes = (target.site or load_site(context.job.site)).nodes
    return RunRequest(
        executable,
        config.seed,
        first,
        last,
        context.streamers,
        target.system.name,
        target.system.usable_cores,
        Layout.of(context.job, nodes).options_for,
        config.check_numerics,
        dataset.replayed,
    )


def _context(target: Target) -> TaskContext:
    if target.context is None:
        raise ValueError("a cluster needs a job")
    return target.context


def _say_waiting(name: str) -> Callable[[str], None]:
    return lambda obstacle: log.info(log_lines.system_busy(name, obstacle))


def _spawn_wafer(target: Target, folder: RunFolder) -> None:
    context, name = _context(target), target.system.name
    link = context.link()
    secret_file = context.job_dir / SECRET_FILE
    arguments = (str(folder.path), folder.job, str(secret_file), name)
    link.spawn_wafer(
        SpawnWafer(name, (sys.executable, "-m", "csrun.runtime.roles.wafer", *arguments))
    )
    link.close()
