"""Node agent of a cluster's job: the one process that srun starts on a node.

Started as `python -P -m csrun.launch.slurm.node_agent JOB_DIR MODULES`. It imports MODULES (names
with commas between them) for its tasks, reports in, forks them when all nodes have, passes signals
and messages on, reaps the tasks, and reports how each ended; for the chief it does so for the
wafers, too. It leaves when its tasks have ended well, after a failure only when csrun_wse lets it
go: Slurm would end the whole job before the others have spoken. In a job that may restart it always
waits for that, and forks the tasks anew on request. When csrun_wse is silent, it acts
in its place: see `csrun.launch.slurm.orphaned_node`.
"""

import os
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
from csrun.context.link import link_name
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
COMPLAINT = "csrun: "  # how a line begins that csrun_wse is to show as the reason
EXIT_NOT_SHARED = 2
HEARD_S = 1.0  # srun may see an exit before it has read the output
PROGRESS_S = 1.0
UNRUNG_S = 2.0  # orders are looked for this often without a bell, which a busy Slurm may lose
_HANDLED = (signal.SIGURG, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class NodeAgent:
    """The loop of one node agent, and the tasks and wafers that live under it."""

    def __init__(
        self, folder: JobFolder, place: environment.SlurmPlace, ranks: Iterable[int]
    ) -> None:
        self._folder = folder
        self._node_id = place.node_id
        self._ranks = frozenset(ranks)
        self._box = mailbox.Outbox(mailbox.node_box(folder.path, place.node_id))
        self._alone = OrphanedNode(folder, place.job_id, is_first=0 in self._ranks)
        self._tasks = NodeTasks(folder, link_name(place.node_id), len(self._ranks), _HANDLED)
        self._job: JobFile | None = None
        self._shows_progress = False
        self._next_progress_s = 0.0
        self._usage = UsageWriter(folder, place.node_id)
        self._has_failed = False  # one of the tasks
        self._is_let_go = False
        self._let_go_code = 0

    def run(self, ready: mailbox.NodeReady) -> int:
        """Work until the tasks have ended well, or csrun_wse lets go or is lost; the exit code.

        Raises: CsrunError when nothing could be said for as long as a launcher is waited for
        """
        self._say(ready)
        with selectors.DefaultSelector() as selector:
            selector.register(self._tasks.link, selectors.EVENT_READ, self._forward)
            selector.register(self._tasks.gate, selectors.EVENT_READ, self._let_in)
            selector.register(self._tasks.signals, selectors.EVENT_READ, self._take_signals)
            while not self._is_over():
                for key, _ in selector.select(UNRUNG_S):
                    key.data()
                self._handle_all()
                self._say_again()
                self._usage.sample_if_due(self._tasks.names)
                self._do(self._alone.turn())
        is_left = self._alone.is_alone and not self._is_let_go
        return self._alone.leave() if is_left else self._let_go_code

    def leave(self) -> None:
        """Say that nothing is left here."""
        self._say(mailbox.Left())

    def _is_over(self) -> bool:
        if self._is_let_go:
            return True
        if self._alone.is_alone:
            return self._alone.may_leave()
        if self._job is None or self._job.max_restarts or self._alone.stays:
            return False
        return not self._tasks and not self._has_failed and not self._box.is_waiting

    def _say(self, message: mailbox.FromNodeAgent) -> None:
        post = self._box.post_or_drop if isinstance(message, Progress) else self._box.post
        if post(message):
            self._ring()

    def _say_again(self) -> None:
        """Wait for messages that had no room on the disk, up to a timeout when no task is alive."""
        if not self._box.is_waiting:
            return
        if self._box.retry():
            self._ring()
            return
        too_long = self._box.waits_s > self._alone.silence_s
        if too_long and not self._tasks and not self._alone.is_alone:
            raise CsrunError(self._box.refusal)

    def _ring(self) -> None:
        with suppress(OSError):  # srun is gone, and we shall be
            os.write(1, BELL)

    def _let_in(self) -> None:
        if self._tasks.gate.take_arrivals():
            self._say(TasksReady(len(self._ranks), time.time()))

    def _forward(self) -> None:
        message = self._tasks.receive(self._job)
        if message is None:
            return
        if not isinstance(message, Progress) or self._is_worth_showing(message):
            self._say(message)
        if isinstance(message, SpawnWafer):
            self._do(self._alone.keep(WaferRequested(message.system, message.run)))

    def _is_worth_showing(self, progress: Progress) -> bool:
        """Mail is kept, on a file system that others use: a few of a thousand steps will do."""
        now_s = time.monotonic()
        is_due = now_s >= self._next_progress_s or progress.done == progress.total
        if is_due:
            self._next_progress_s = now_s + PROGRESS_S
        return is_due and self._shows_progress

    def _take_signals(self) -> None:
        received = self._tasks.received()
        if signal.SIGTERM in received:  # of scancel, to all processes of the job
            self._say(Stopped(signal.SIGTERM, time.time()))
        if signal.SIGCHLD in received:
            self._reap()

    def _handle_all(self) -> None:
        for order in self._alone.orders():
            self._handle(order)

    def _do(self, instructions: Iterable[Instruction]) -> None:
        """Do in csrun_wse's stead what is to be done for our tasks."""
        for each in instructions:
            if isinstance(each, Start):
                self._start(each.task)
            elif isinstance(each, Send):
                self._tasks.send_signal(SignalTasks(each.names, each.signum))

    def _handle(self, order: mailbox.ToNodeAgents) -> None:
        match order:
            case mailbox.StartAll(job, shows_progress):
                self._job, self._shows_progress, self._has_failed = job, shows_progress, False
                self._alone.begin(job)
                for rank in sorted(self._ranks):
                    self._start(StartTask(rank, job.command))
            case StartTask():
                if order.rank in self._ranks and not self._alone.has_started(order):
                    self._start(order)
            case SignalTasks():
                self._tasks.send_signal(order)
            case mailbox.LetGo(stays, exit_code):
                if not self._is_let_go and stays != self._node_id:
                    self._is_let_go, self._let_go_code = True, exit_code

    def _start(self, task: StartTask) -> None:
        if self._job is not None:
            self._tasks.start(task, self._job)
            self._alone.keep(task)

    def _reap(self) -> None:
        now_s = time.time()
        for task, exit_code in self._tasks.reap():
            self._report_end(task, exit_code, now_s)

    def _report_end(self, task: StartTask, exit_code: int, now_s: float) -> None:
        self._has_failed |= task.wafer is None and exit_code != 0
        report = self._folder.report(task.report_name)
        self._say(TaskEnded(task.name, exit_code, now_s, _on_wall_clock(report)))
        self._do(self._alone.keep(TaskExited(task.name, exit_code, time.monotonic(), report)))


def _on_wall_clock(report: TaskReport | None) -> TaskReport | None:
    """A report for csrun_wse, whose monotonic clock is another machine's."""
    if report is None:
        return None
    since_s = time.monotonic() - report.time_s
    return msgspec.structs.replace(report, time_s=time.time() - since_s)


def _complain(text: str) -> None:
    """Say what keeps the job from running, and wait until srun has read it."""
    print(f"{COMPLAINT}{text}", file=sys.stderr, flush=True)
    time.sleep(HEARD_S)


def _ready(place: environment.SlurmPlace) -> mailbox.NodeReady:
    """Report of this node before its tasks start."""
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
    """Run the agent of the node in Slurm's variables; the module's text has the arguments."""
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
    preload(filter(None, modules.split(",")))  # before the report: all nodes then fork together
    os.set_blocking(1, False)  # for a bell that nobody takes from the pipe any more
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
    os._exit(left_with)  # at once: with its last word, srun may be told of another's exit code
