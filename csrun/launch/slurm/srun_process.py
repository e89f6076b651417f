"""Running srun of a job, as seen by its launcher: orders go in, events come out."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from csrun.context import JobFile, TaskReport, TaskReportKind, environment
from csrun.jobs.folder import JobFolder
from csrun.jobs.record import Outcome, RecordState
from csrun.launch.first_cause import describe_srun_loss
from csrun.launch.life.job_loop import print_line
from csrun.launch.process import protocol
from csrun.launch.process.process_tree import die_with_parent
from csrun.launch.slurm import job_comment, mailbox, orphaned_node
from csrun.launch.slurm.commands import call
from csrun.launch.slurm.stop_reason import stop_reason

LOG_NAME = "srun"
LET_GO_S = 5.0  # for the node agents to exit, before srun is signalled to end them
SILENCE_S = 5.0  # after SIGKILL was ordered; a node agent that is silent for that long is lost
CANCEL_S = 10.0  # for Slurm to cancel a job, over a slow network
_READ_BYTES = 1 << 16


class SrunProcess:
    """One srun, as TaskServer. Its node agents report first; then `job` has their nodes.

    owns_job: csrun submitted the Slurm job, so it may cancel it.
    frees_job: the job was created for this srun, so its nodes are released when srun ends.
    """

    name = "srun"

    def __init__(
        self,
        argv: Sequence[str],
        folder: JobFolder,
        nodes: int,
        *,
        owns_job: bool = True,
        frees_job: bool = True,
    ) -> None:
        self._owns_job = owns_job
        self._frees_job = frees_job
        (folder.path / mailbox.MAIL_DIR).mkdir(0o700)
        decoder = msgspec.msgpack.Decoder(mailbox.FromNodeAgent)
        self._box = mailbox.Outbox(mailbox.launcher_mailbox(folder.path))
        self._readers = [
            mailbox.MailboxReader(mailbox.node_mailbox(folder.path, node_id), decoder)
            for node_id in range(nodes)
        ]
        self._unended: dict[str, int] = {}  # started tasks, with their ranks
        # by node: wall-clock time there at which Slurm signalled its node agent to end
        self._stops: dict[int, float] = {}
        self._first_stop_s = 0.0  # time of the first report of that
        self._ready_nodes: list[protocol.TasksReady] = []  # number of living tasks per node
        self._left: set[int] = set()  # nodes whose node agents have exited regularly
        self.job: JobFile | None = None
        self.job_id = 0  # number of a job that srun requested, once srun has printed it
        self._silence: threading.Timer | None = None
        self._process = _start(argv, folder)
        self._has_ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def fileno(self) -> int:
        """Descriptor on which notifications arrive."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def reports(self) -> list[mailbox.NodeReady] | None:
        """Return the node agents that have reported since the last call; None if srun has ended."""
        if not os.read(self.fileno(), _READ_BYTES):
            return None
        return [
            message for _, message in self._receive_all() if isinstance(message, mailbox.NodeReady)
        ]

    def send(self, message: protocol.ToServer) -> None:
        """Send an order; the planned tasks start together, once all were ordered.

        An order that cannot be written into the job folder is sent as soon as it can.
        """
        match message:
            case protocol.StartTask():
                assert self.job is not None
                self._unended[message.name] = message.rank
                if message.wafer is None and len(self._unended) < len(self.job.tasks):
                    return
                start_all = mailbox.StartAll(self.job, sys.stdout.isatty())
                self._order(start_all if message.wafer is None else message)
            case protocol.SignalTasks():
                if message.signum == signal.SIGKILL:
                    self._end_after_silence()
                self._order(message)

    def receive(self) -> list[protocol.ToLauncher] | None:
        """Return messages of the node agents; when srun has ended, its lost tasks; then None."""
        rung = os.read(self.fileno(), _READ_BYTES)
        # Stops first: exits of tasks in the same batch of messages are compared with them.
        new = sorted(
            self._receive_all(), key=lambda pair: not isinstance(pair[1], protocol.Stopped)
        )
        heard = [known for node_id, message in new for known in self._passed_on(node_id, message)]
        if heard or rung:
            return heard
        # An srun that was killed by a signal is itself the cause, not one of the nodes.
        if self._unended and self._process.wait() >= 0:
            return self._lost()
        return None

    def end(self, outcome: Outcome | None = None) -> int:
        """Release the node agents and end the Slurm job; return srun's exit code.

        Slurm stores the outcome: cancelled if csrun_wse got a signal to end, else the exit code;
        csrun's time limit is noted in the comment.
        """
        self._break_silence()
        if self._unended:
            return self.cancel()
        if outcome is not None:
            self._set_slurm_state(outcome)
        self._release_agents(0 if outcome is None else outcome.exit_code)
        self._wait(LET_GO_S)
        return self._close()

    def _set_slurm_state(self, outcome: Outcome) -> None:
        if self.job is None or not self._owns_job:
            return
        if outcome.state is RecordState.CANCELLED and not self._stops:
            _scancel(str(self.job.job_id))
        elif outcome.state is RecordState.TIMEOUT:
            job_comment.add_note(self.job.job_id, job_comment.TIME_LIMIT)
        elif outcome.state is RecordState.FAILED and outcome.cause:
            job_comment.add_note(self.job.job_id, job_comment.cause(outcome.cause))

    def _release_agents(self, exit_code: int) -> None:
        """Release the node agents; the one that exits with the exit code for Slurm comes last."""
        there = [node_id for node_id in range(len(self._readers)) if node_id not in self._left]
        if exit_code and len(there) > 1:
            self._order(mailbox.ReleaseAgents(there[0]))
            self._await_others(there[0])
        self._order(mailbox.ReleaseAgents(exit_code=exit_code))

    def _await_others(self, stays: int) -> None:
        others = set(range(len(self._readers))) - {stays}
        until_s = time.monotonic() + LET_GO_S
        while not others <= self._left and (left_s := until_s - time.monotonic()) > 0:
            if not select.select([self], [], [], left_s)[0] or self.receive() is None:
                return

    def cancel(self) -> int:
        """Cancel the Slurm job, pending or running; return srun's exit code."""
        if self.job_id:
            _scancel(str(self.job_id))
        elif self._process.poll() is None:
            self._process.terminate()
        elif self.job is not None and self._owns_job:
            _scancel(str(self.job.job_id))
        self._wait(CANCEL_S)
        return self._close()

    def describe_stop(self) -> str:
        return "" if self.job is None else stop_reason(self.job.job_id, self.job.grace_s)

    def describe_loss(self, exit_code: int, folder: JobFolder) -> str:
        return describe_srun_loss(exit_code, folder.log(LOG_NAME))

    def _order(
        self,
        message: mailbox.StartAll
        | protocol.StartTask
        | protocol.SignalTasks
        | mailbox.ReleaseAgents,
    ) -> None:
        waited = self._box.is_waiting
        if self._box.post(message):
            self._ring()
        elif not waited:
            with suppress(OSError):  # our output may be on the same disk
                print_line(f"csrun_wse: {self._box.refusal}; the tasks wait, retrying")

    def _ring(self) -> None:
        if self._process.poll() is None and self.job is not None:
            _scancel("--signal=URG", str(self.job.job_id))

    def _beat(self) -> None:
        """Send heartbeats in a thread, whatever the main thread waits for: a slow Slurm, a stopped
        terminal.
        """
        heartbeat = mailbox.Heartbeat(orphaned_node.SILENCE_S, self._frees_job)
        while not self._has_ended.is_set():
            waited = self._box.is_waiting
            if self._box.post_or_drop(heartbeat) and waited:
                self._ring()
            self._has_ended.wait(orphaned_node.HEARTBEAT_S)

    def _receive_all(self) -> list[tuple[int, mailbox.FromNodeAgent]]:
        return [(node_id, said) for node_id, box in enumerate(self._readers) for said in box.read()]

    def _passed_on(self, node_id: int, message: mailbox.FromNodeAgent) -> list[protocol.ToLauncher]:
        match message:
            case mailbox.NodeReady():
                return []
            case mailbox.AgentExited():
                self._left.add(node_id)
                return []
            case protocol.TasksReady():
                self._ready_nodes.append(message)
                return self._all_ready() if len(self._ready_nodes) == len(self._readers) else []
            case protocol.TaskEnded():
                self._unended.pop(message.name, None)
                if not self._unended:
                    self._break_silence()  # srun continues, for tasks that may restart
                return [self._in_local_time(node_id, message)]
            case protocol.Stopped():
                is_first = not self._stops
                self._first_stop_s = self._first_stop_s or time.monotonic()
                self._stops.setdefault(node_id, message.time_s)  # Slurm may repeat its signal
                return [protocol.Stopped(message.signum, self._first_stop_s)] if is_first else []
        return [message]

    def _all_ready(self) -> list[protocol.ToLauncher]:
        return [
            protocol.TasksReady(sum(each.tasks for each in self._ready_nodes), time.monotonic())
        ]

    def _in_local_time(self, node_id: int, ended: protocol.TaskEnded) -> protocol.TaskEnded:
        """Convert wall-clock times of a node to this machine's monotonic clock.

        Slurm signals the nodes one after the other, and their reports arrive in another order. The
        exit of a task after the stop of its node therefore counts from the first stop.
        """
        stop_s = self._stops.get(node_id)
        if stop_s is None or ended.time_s < stop_s:
            return _shifted(ended, time.time(), time.monotonic())
        return _shifted(ended, stop_s, self._first_stop_s)

    def _lost(self) -> list[protocol.ToLauncher]:
        """Return the tasks of nodes that died, or whose node agents did.

        Slurm then ends the others, and signals their node agents. A node whose agent was not
        signalled failed first; one that was signalled did not end in time.
        """
        lost, self._unended = dict(sorted(self._unended.items())), {}
        return [
            protocol.TaskEnded(name, -signal.SIGKILL, time.monotonic(), is_lost=True)
            if self._node_id(rank) in self._stops
            else protocol.TaskEnded(name, 1, 0.0, self._loss(rank), is_lost=True)
            for name, rank in lost.items()
        ]

    def _node_id(self, rank: int) -> int:
        assert self.job is not None
        return self.job.tasks[rank].node_id

    def _loss(self, rank: int) -> TaskReport:
        assert self.job is not None
        text = describe_loss(self.job.tasks[rank].node, rank)
        if self._box.is_waiting:
            text = self._box.refusal
        return TaskReport(rank, TaskReportKind.USER_ERROR, text, "", 1, 0.0, 0)

    def _end_after_silence(self) -> None:
        if self._silence is None:
            self._silence = threading.Timer(SILENCE_S, self._process.terminate)
            self._silence.daemon = True
            self._silence.start()

    def _break_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _wait(self, timeout_s: float) -> None:
        for _ in range(2):
            try:
                self._process.wait(timeout_s)
                return
            except subprocess.TimeoutExpired:
                self._process.terminate()
        self._process.kill()

    def _close(self) -> int:
        assert self._process.stdout is not None
        self._has_ended.set()
        self._heart.join()
        self._process.stdout.close()
        return self._process.wait()


def describe_loss(node: str, rank: int) -> str:
    """Describe the failure of a task whose node is lost."""
    return (
        f"{node} lost: rank {rank} ended without an exit status (node failure or out of memory);"
        " 'sinfo -N -l' shows the state of the nodes"
    )


def _start(argv: Sequence[str], folder: JobFolder) -> "subprocess.Popen[bytes]":
    launcher = os.getpid()
    with folder.log(LOG_NAME).open("wb") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            env=environment.for_srun(),
            process_group=0,  # key signals of the terminal are forwarded by us
            preexec_fn=lambda: die_with_parent(launcher, signal.SIGTERM),
        )


def _scancel(*arguments: str) -> None:
    call("scancel", *arguments)


def _shifted(ended: protocol.TaskEnded, from_s: float, to_s: float) -> protocol.TaskEnded:
    """Convert times to a clock that shows `to_s` when theirs shows `from_s`."""
    report = ended.report
    if report is not None:
        report = msgspec.structs.replace(report, time_s=to_s + (report.time_s - from_s))
    return msgspec.structs.replace(ended, time_s=to_s + (ended.time_s - from_s), report=report)
