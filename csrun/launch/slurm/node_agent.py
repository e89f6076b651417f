"""Node agent of a cluster's job: the single process that srun starts on a node.

Started as `python -P -m csrun.launch.slurm.node_agent JOB_DIR MODULES`. It imports MODULES (names
separated by commas) for its tasks, reports to csrun_wse, forks the tasks when all nodes have
reported, forwards signals and messages, reaps the tasks, and reports the end of each; on the
chief's node also for the wafers. It exits when its tasks have ended without error. After a failure
it waits until csrun_wse releases it, because Slurm would otherwise end the whole job before the
other nodes have reported. In a job with restarts it always waits, and forks the tasks again on
request. If csrun_wse is silent, it acts in its place: see `csrun.launch.slurm.orphaned_node`.
"""

import os
import select
import selectors
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.base.version import installed_versions
from csrun.context import JobFile, Progress, SpawnWafer, TaskReport, environment
from csrun.context.launcher_link import link_name
from csrun.jobs.folder import JobFolder
from csrun.launch.life.job_state import Instruction, Send, Start, TaskExited, WaferRequested
from csrun.launch.process.forking import NodeTasks
from csrun.launch.process.preload import preload
from csrun.launch.process.process_tree import become_subreaper, kill_descendants, set_name
from csrun.launch.process.protocol import SignalTasks, StartTask, Stopped, TaskEnded, TasksReady
from csrun.launch.process.usage_log import UsageWriter
from csrun.launch.slurm import mailbox
from csrun.launch.slurm.identity import address_towards, machine
from csrun.launch.slurm.orphaned_node import OrphanedNode

PLAN_FILE = "plan.json"
BELL = b"\n"
COMPLAINT = "csrun: "  # prefix of a line that csrun_wse shows as the reason
EXIT_NOT_SHARED = 2
HEARD_S = 1.0  # srun may see an exit before it has read the output
PROGRESS_S = 1.0
# seconds between reads of orders without a notification, which a busy Slurm may lose
UNRUNG_S = 2.0
# seconds for Slurm to signal this process after a task: it signals them one after the other
STOP_S = 2.0
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes
_HANDLED = (signal.SIGURG, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class NodeAgent:
    """Event loop of one node agent, with its tasks and wafers."""

    def __init__(
        self, folder: JobFolder, place: environment.SlurmPlace, ranks: Iterable[int]
    ) -> None:
        self._folder = folder
        self._node_id = place.node_id
        self._ranks = frozenset(ranks)
        self._box = mailbox.Outbox(mailbox.node_mailbox(folder.path, place.node_id))
        self._alone = OrphanedNode(folder, place.job_id, is_first=0 in self._ranks)
        self._tasks = NodeTasks(folder, link_name(place.node_id), len(self._ranks), _HANDLED)
        self._job: JobFile | None = None
        self._shows_progress = False
        self._next_progress_s = 0.0
        self._usage = UsageWriter(folder, place.node_id)
        self._has_failed = False  # a task of this node
        self._is_stopping = False  # SIGTERM came from Slurm, or was ordered
        self._is_released = False
        self._exit_code = 0

    def run(self, ready: mailbox.NodeReady) -> int:
        """Run until the tasks have ended without error, or csrun_wse releases the agent or is lost;
        return the exit code.

        Raises: CsrunError if no message could be written for the launcher's timeout
        """
        self._post(ready)
        with selectors.DefaultSelector() as selector:
            selector.register(self._tasks.link, selectors.EVENT_READ, self._forward)
            selector.register(
                self._tasks.start_barrier, selectors.EVENT_READ, self._report_arrivals
            )
            selector.register(self._tasks.signals, selectors.EVENT_READ, self._take_signals)
            while not self._is_over():
                for key, _ in selector.select(UNRUNG_S):
                    key.data()
                self._handle_all()
                self._post_again()
                self._usage.sample_if_due(self._tasks.names)
                self._do(self._alone.next_instructions())
        is_left = self._alone.is_alone and not self._is_released
        return self._alone.leave() if is_left else self._exit_code

    def leave(self) -> None:
        """Send the last message: no process is left here."""
        self._post(mailbox.AgentExited())

    def _is_over(self) -> bool:
        if self._is_released:
            return True
        if self._alone.is_alone:
            return self._alone.may_leave()
        if self._job is None or self._job.max_restarts or self._alone.stays:
            return False
        return not self._tasks and not self._has_failed and not self._box.is_waiting

    def _post(self, message: mailbox.FromNodeAgent) -> None:
        post = self._box.post_or_drop if isinstance(message, Progress) else self._box.post
        if post(message):
            self._ring()

    def _post_again(self) -> None:
        """Wait until queued messages are written, up to a timeout if no task is alive."""
        if not self._box.is_waiting:
            return
        if self._box.retry():
            self._ring()
            return
        too_long = self._box.waits_s > self._alone.silence_s
        if too_long and not self._tasks and not self._alone.is_alone:
            raise CsrunError(self._box.refusal)

    def _ring(self) -> None:
        with suppress(OSError):  # srun has ended, and this process will end, too
            os.write(1, BELL)

    def _report_arrivals(self) -> None:
        if self._tasks.start_barrier.count_arrivals():
            self._post(TasksReady(len(self._ranks), time.time()))

    def _forward(self) -> None:
        message = self._tasks.receive(self._job)
        if message is None:
            return
        if not isinstance(message, Progress) or self._is_worth_showing(message):
            self._post(message)
        if isinstance(message, SpawnWafer):
            self._do(self._alone.keep(WaferRequested(message.system, message.run)))

    def _is_worth_showing(self, progress: Progress) -> bool:
        """Limit progress messages to a few: they are files on a file system that others use."""
        now_s = time.monotonic()
        is_due = now_s >= self._next_progress_s or progress.done == progress.total
        if is_due:
            self._next_progress_s = now_s + PROGRESS_S
        return is_due and self._shows_progress

    def _take_signals(self) -> None:
        """Report a stop of the job before the exits of the tasks that it has ended."""
        received, now_s = self._tasks.received(), time.time()
        ended = self._tasks.reap() if signal.SIGCHLD in received else []
        if not self._is_stopping and any(exit_code in _TERMINATED for _, exit_code in ended):
            received += self._await_stop()
            ended += self._tasks.reap()
        if signal.SIGTERM in received:  # scancel signals all processes of the job
            self._is_stopping = True
            self._post(Stopped(signal.SIGTERM, now_s))
        for task, exit_code in ended:
            self._report_end(task, exit_code, now_s)

    def _await_stop(self) -> bytes:
        """Wait until Slurm has signalled this process, too; return the received signals."""
        received, until_s = b"", time.monotonic() + STOP_S
        while signal.SIGTERM not in received and (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._tasks.signals], [], [], left_s)[0]:
                received += self._tasks.received()
        return received

    def _handle_all(self) -> None:
        for order in self._alone.orders():
            self._handle(order)

    def _do(self, instructions: Iterable[Instruction]) -> None:
        """Execute an instruction for our tasks in csrun_wse's place."""
        for each in instructions:
            if isinstance(each, Start):
                self._start(each.task)
            elif isinstance(each, Send):
                self._signal(SignalTasks(each.names, each.signum))

    def _handle(self, order: mailbox.ToNodeAgents) -> None:
        match order:
            case mailbox.StartAll(job, shows_progress):
                self._job, self._shows_progress = job, shows_progress
                self._has_failed = self._is_stopping = False
                self._alone.begin(job)
                for rank in sorted(self._ranks):
                    self._start(StartTask(rank, job.command))
            case StartTask():
                if order.rank in self._ranks and not self._alone.has_started(order):
                    self._start(order)
            case SignalTasks():
                self._signal(order)
            case mailbox.ReleaseAgents(stays, exit_code):
                if not self._is_released and stays != self._node_id:
                    self._is_released, self._exit_code = True, exit_code

    def _start(self, task: StartTask) -> None:
        if self._job is not None:
            self._tasks.start(task, self._job)
            self._alone.keep(task)

    def _signal(self, order: SignalTasks) -> None:
        self._is_stopping = True
        self._tasks.send_signal(order)

    def _report_end(self, task: StartTask, exit_code: int, now_s: float) -> None:
        self._has_failed |= task.wafer is None and exit_code != 0
        report = self._folder.report(task.report_name)
        self._post(TaskEnded(task.name, exit_code, now_s, _on_wall_clock(report)))
        self._do(self._alone.keep(TaskExited(task.name, exit_code, time.monotonic(), report)))


def _on_wall_clock(report: TaskReport | None) -> TaskReport | None:
    """Convert a report's monotonic time to wall-clock time for csrun_wse on another machine."""
    if report is None:
        return None
    since_s = time.monotonic() - report.time_s
    return msgspec.structs.replace(report, time_s=time.time() - since_s)


def _complain(text: str) -> None:
    """Print what prevents the job from running, and wait until srun has read it."""
    print(f"{COMPLAINT}{text}", file=sys.stderr, flush=True)
    time.sleep(HEARD_S)


def _ready(place: environment.SlurmPlace) -> mailbox.NodeReady:
    """Return the report of this node before its tasks start."""
    return mailbox.NodeReady(
        place.node_id,
        place.job_id,
        place.node,
        tuple(sorted(os.sched_getaffinity(0))),
        machine(),
        address_towards(place.launch_address),
        place.account,
        installed_versions(),
    )


def main(argv: list[str]) -> int:
    """Run the agent of the node in Slurm's variables; the module docstring describes the
    arguments.
    """
    folder, modules = JobFolder(Path(argv[0])), argv[1]
    place = environment.slurm_place()
    try:
        plan = stored.read(folder.path / PLAN_FILE, JobFile, "the job's plan", "start it again")
    except FileNotFoundError as error:
        _complain(
            f"{place.node}: job folder {folder.path} not found ({error.strerror}): set jobs_dir in"
            " the site file to a folder that all nodes share"
        )
        return EXIT_NOT_SHARED
    except CsrunError as error:
        _complain(f"{place.node}: {error}")
        return error.exit_code
    set_name(f"node-agent-{place.node_id}")
    become_subreaper()
    environment.adopt(environment.ONE_BLAS_THREAD)
    # before the report, so that all nodes then fork at the same time
    preload(filter(None, modules.split(",")))
    os.set_blocking(1, False)  # discards a notification that nobody reads
    ranks = (task.rank for task in plan.tasks if task.node_id == place.node_id)
    agent = NodeAgent(folder, place, ranks)
    try:
        code = agent.run(_ready(place))
    except CsrunError as error:
        print(f"{COMPLAINT}{place.node}: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    kill_descendants()
    agent.leave()
    return code


if __name__ == "__main__":
    left_with = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(left_with)  # without cleanup: after the last message srun may get another exit code
