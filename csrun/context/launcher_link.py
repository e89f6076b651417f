"""Connection of a task to its launcher: failure reports (files), progress and spawn requests
(socket).

A failure report is a file because it must outlive both processes: the task that writes it is
ending, and under Slurm the launcher may not be listening.
"""

import os
import socket
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from time import monotonic

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError, PeerLost

LINK_SOCKET = "link.sock"
REPORT_DIR = "reports"


def link_name(node_id: int) -> str:
    """Return the socket's name for a node with a separate socket, as on a cluster."""
    return f"link-{node_id}.sock"


class TaskReportKind(StrEnum):
    """Kind of a task's failure."""

    ERROR = "error"  # exception that is a bug; the traceback is shown
    USER_ERROR = "user_error"  # CsrunError; one line is shown
    EXIT = "exit"  # sys.exit(n) in the user's code
    PEER_LOST = "peer_lost"  # consequence of another failure, never the first cause


class TaskReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task's report on the reason why it ends.

    time_s: time of CLOCK_MONOTONIC, comparable on one machine.
    log_bytes: length of the task's log before the traceback; the launcher forwards the log up to
        there and prints the traceback once, at the end. None while the task still runs and may
        write more.
    lost: name of the lost peer, for PEER_LOST.
    step: step of the training that lost the peer.
    """

    rank: int
    kind: TaskReportKind
    message: str
    traceback: str
    exit_code: int
    time_s: float
    log_bytes: int | None
    lost: str = ""
    step: int | None = None

    def write(self, job_dir: Path, name: str | None = None) -> None:
        """Write the report into the job folder atomically."""
        folder = job_dir / REPORT_DIR
        folder.mkdir(0o700, exist_ok=True)
        path = folder / f"{name or self.rank}.json"
        stored.write(path, self, durable=False)

    @staticmethod
    def read(job_dir: Path, name: str) -> "TaskReport | None":
        """Read the report of a task in the job folder; None if it cannot be read."""
        with suppress(FileNotFoundError, CsrunError):
            return stored.read(job_dir / REPORT_DIR / f"{name}.json", TaskReport, "the report")
        return None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress of a long operation.

    total: 0 when unknown.
    text: details such as 'loss 0.41'.
    unit: unit of the count, e.g. 'steps', for operations whose rate is shown.
    loss: loss of a training's last step.
    input_share: share of the training's time in which the wafer waited for batches, 0 to 1.
    straggler: name of the only streamer that delays the training; empty if there is none.
    """

    what: str
    done: int
    total: int
    text: str = ""
    unit: str = ""
    loss: float | None = None
    input_share: float | None = None
    straggler: str = ""


class SpawnWafer(msgspec.Struct, frozen=True, tag="spawn_wafer"):
    """Request to the launcher to start the wafer process of one CS system, as a task of the job.

    The fork server starts it, so that its end is noticed, reported and reaped as for any other
    task. For security the message names a system of the site and the number of a run, not a
    command.
    """

    system: str
    run: int


Message = Progress | SpawnWafer


class JobLink:
    """Connection of a task to its launcher: a Unix datagram socket in the job folder.

    A datagram is one `Message`, encoded as msgpack. If the launcher has ended, `spawn_wafer` raises
    PeerLost and `progress` does nothing.
    """

    def __init__(self, job_dir: Path, rank: int, node_id: int = 0) -> None:
        self._job_dir = job_dir
        self._rank = rank
        own = link_name(node_id)
        self._name = own if (job_dir / own).exists() else LINK_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._encoder = msgspec.msgpack.Encoder()

    def progress(self, progress: Progress) -> None:
        """Send the progress of the job; a lost message does no harm."""
        try:
            # A stopped launcher must not block a training.
            self._send(progress, socket.MSG_DONTWAIT)
        except OSError:
            return

    def spawn_wafer(self, request: SpawnWafer) -> None:
        """Start a wafer process.

        Raises: PeerLost if the launcher has ended
        """
        try:
            self._send(request, 0)
        except OSError as error:
            raise PeerLost(f"rank {self._rank} lost its launcher: {error}") from error

    def _send(self, message: Message, flags: int) -> None:
        # Socket paths are limited to 108 bytes, job folders are not: use the folder's descriptor.
        folder = os.open(self._job_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            address = f"/proc/self/fd/{folder}/{self._name}"
            self._socket.sendto(self._encoder.encode(message), flags, address)
        finally:
            os.close(folder)

    def close(self) -> None:
        self._socket.close()


def report_of(
    rank: int, error: BaseException, traceback_text: str, log_bytes: int | None = None
) -> TaskReport:
    """Return the report of a task that ends with `error`."""
    kind, code, message = TaskReportKind.ERROR, 1, f"{type(error).__name__}: {error}"
    if isinstance(error, PeerLost):
        kind, message = TaskReportKind.PEER_LOST, str(error)
    elif isinstance(error, CsrunError):
        kind, code, message = TaskReportKind.USER_ERROR, error.exit_code, _with_notes(error)
    elif isinstance(error, SystemExit):
        kind, code, message = TaskReportKind.EXIT, exit_code_of(error), "sys.exit was called"
    report = TaskReport(rank, kind, message, traceback_text, code, monotonic(), log_bytes)
    if isinstance(error, PeerLost):
        return msgspec.structs.replace(report, lost=error.peer, step=error.step)
    return report


def _with_notes(error: CsrunError) -> str:
    """Return the error and its notes in one line."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def exit_code_of(error: SystemExit) -> int:
    """Return the exit code that Python would use for a SystemExit."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
