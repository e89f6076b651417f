"""The attendant of one task on a cluster: what srun starts in the task's place.

Started as `python -P -m csrun.launch.slurm.attendant JOB_DIR`, on the task's node. It reports in,
forks the task when all have, passes signals and messages on, reaps the task, and reports how it
ended; for the chief it does so for the wafers, too. It leaves with the task's exit code, after a
failure only when csrun_wse lets it go: Slurm would end the whole job before its peers have spoken.
In a job that may restart it always waits for that, and forks the task anew when it is told to.
"""

import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base.errors import shell_code
from csrun.context import JobFile, Progress, environment
from csrun.context.link import link_name
from csrun.jobs.folder import JobFolder
from csrun.launch.plan import cpu_set
from csrun.launch.process import forking
from csrun.launch.process.process_tree import become_subreaper, kill_descendants, reap, set_name
from csrun.launch.process.protocol import SignalTasks, StartTask, Stopped, TaskEnded
from csrun.launch.slurm import mail

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_ANY_PORT = 9  # nothing is sent


def machine() -> str:
    """The same for two processes exactly when they run under one kernel, in one network.

    Source: random(4), boot_id; network_namespaces(7): abstract sockets are a network's own
    """
    return f"{_BOOT_ID.read_text().strip()} {os.stat(_NETWORK).st_ino}"


def address_towards(peer: str) -> str:
    """This machine's address in the network in which it reaches `peer`, an IP address."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect((peer, _ANY_PORT))
        name: str = route.getsockname()[0]
    return name


PLAN_FILE = "plan.json"
BELL = b"\n"
COMPLAINT = "csrun: "  # how a line begins that csrun_wse is to show as the reason
EXIT_NOT_SHARED = 2
PROGRESS_S = 1.0
UNRUNG_S = 2.0  # orders are looked for this often without a bell, which a busy Slurm may lose
_HANDLED = (signal.SIGURG, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class Attendant:
    """The loop of one attendant, and the task and wafers that live under it."""

    def __init__(self, folder: JobFolder, place: environment.SlurmPlace) -> None:
        self._folder = folder
        self._rank = place.rank
        self._box = mail.task_box(folder.path, place.rank)
        self._orders = mail.Reader(
            mail.launcher_box(folder.path), msgspec.msgpack.Decoder(mail.ToAttendants)
        )
        self._link = forking.bind_link(folder.path, link_name(place.rank))
        self._signals, self._wakeup = forking.signal_pipe(_HANDLED)
        self._tasks: dict[int, StartTask] = {}
        self._job: JobFile | None = None
        self._shows_progress = False
        self._next_progress_s = 0.0
        self._exit_code = 0
        self._is_let_go = False

    def attend(self, ready: mail.TaskReady) -> int:
        """Work until the task has ended well or csrun_wse lets go; the task's exit code."""
        self._say(ready)
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ, self._forward)
            selector.register(self._signals, selectors.EVENT_READ, self._take_signals)
            while not self._is_over():
                for key, _ in selector.select(UNRUNG_S):
                    key.data()
                self._obey_all()
        return shell_code(self._exit_code)

    def _is_over(self) -> bool:
        if self._is_let_go or self._job is None or self._job.max_restarts:
            return self._is_let_go
        return not self._tasks and self._exit_code == 0

    def _say(self, message: mail.FromAttendant) -> None:
        mail.post(self._box, message)
        with suppress(OSError):  # srun is gone, and we shall be
            os.write(1, BELL)

    def _forward(self) -> None:
        message = forking.receive(self._link)
        if message is None or self._job is None or not forking.is_permitted(message, self._job):
            return
        if not isinstance(message, Progress) or self._is_worth_showing(message):
            self._say(message)

    def _is_worth_showing(self, progress: Progress) -> bool:
        """Mail is kept, on a file system that others use: a few of a thousand steps will do."""
        now_s = time.monotonic()
        is_due = now_s >= self._next_progress_s or progress.done == progress.total
        if is_due:
            self._next_progress_s = now_s + PROGRESS_S
        return is_due and self._shows_progress

    def _take_signals(self) -> None:
        received = self._signals.recv(forking.DATAGRAM_BYTES)
        if signal.SIGTERM in received:  # of scancel, to all processes of the job
            self._say(Stopped(signal.SIGTERM, time.time()))
        if signal.SIGCHLD in received:
            self._reap()

    def _obey_all(self) -> None:
        for order in self._orders.read():
            self._obey(order)

    def _obey(self, order: mail.ToAttendants) -> None:
        match order:
            case mail.StartAll(job, shows_progress):
                if self._job is not None:
                    kill_descendants()  # what the task has left behind that now starts again
                self._job, self._shows_progress, self._exit_code = job, shows_progress, 0
                self._start(StartTask(self._rank, job.command))
            case StartTask():
                if order.rank == self._rank:
                    self._start(order)
            case SignalTasks():
                forking.send_signal(self._tasks, order)
            case mail.LetGo():
                self._is_let_go = True

    def _start(self, ordered: StartTask) -> None:
        from csrun.launch.process.task_process import (
            become_task,  # after the report: it imports NumPy's companions
        )

        job, attendant = self._job, os.getpid()
        assert job is not None
        start = forking.with_command(ordered, job, self._folder.path)
        owned = (self._link, self._signals, self._wakeup)
        pid = forking.fork_task(
            _HANDLED, owned, lambda: become_task(start, job, self._folder, attendant)
        )
        self._tasks[pid] = start

    def _reap(self) -> None:
        now_s = time.time()
        for pid, exit_code in reap().items():
            if task := self._tasks.pop(pid, None):  # else an orphan that we adopted
                self._report(task, exit_code, now_s)

    def _report(self, task: StartTask, exit_code: int, now_s: float) -> None:
        if task.wafer is None:
            self._exit_code = exit_code
        if exit_code == 0 and task.wafer is None:
            self._folder.mark_ended(task.rank)
        report = self._folder.report(task.report_name)
        if report is not None:
            since_s = time.monotonic() - report.time_s
            report = msgspec.structs.replace(report, time_s=time.time() - since_s)
        self._say(TaskEnded(task.name, exit_code, now_s, report))


def main(argv: list[str]) -> int:
    """Attend the task that Slurm's variables name; see the module's text for the argument."""
    folder = JobFolder(Path(argv[0]))
    place = environment.slurm_place()
    try:
        plan = msgspec.json.decode((folder.path / PLAN_FILE).read_bytes(), type=JobFile)
    except OSError as error:
        print(
            f"{COMPLAINT}rank {place.rank} on {place.node}: the job's folder {folder.path} is not"
            f" there ({error.strerror}): the nodes of the site must share it; set jobs_dir in the"
            " site file to a folder that they do",
            file=sys.stderr,
        )
        return EXIT_NOT_SHARED
    set_name(f"attendant-{place.rank}")
    become_subreaper()
    wanted = len(plan.tasks[place.rank].cpus)
    first = plan.tasks[place.rank].local_rank * wanted
    cpus = cpu_set(tuple(sorted(os.sched_getaffinity(0))), first, wanted)
    address = address_towards(place.launch_address)
    ready = mail.TaskReady(place.rank, place.job_id, place.node, cpus, machine(), address)
    code = Attendant(folder, place).attend(ready)
    kill_descendants()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
