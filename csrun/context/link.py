"""Link of a task to its launcher: failure reports (files), progress and spawn requests (socket).

A failure is a file, because it must survive both ends: the task that writes it is about to die,
and under Slurm no launcher process may be listening.
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
    """The name of the socket of a node that has one of its own, as on a cluster."""
    return f"link-{node_id}.sock"


class TaskReportKind(StrEnum):
    """Kind of a task's failure."""

    ERROR = "error"  # an exception that is a bug: traceback shown
    USER_ERROR = "user_error"  # a CsrunError: one clear line
    EXIT = "exit"  # sys.exit(n) by the user's code
    PEER_LOST = "peer_lost"  # a consequence, never the first cause


class TaskReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task's own word on why it ends. `time_s` is CLOCK_MONOTONIC, comparable on one machine.

    `log_bytes` is the length of the task's log before the traceback was written to it, so that the
    launcher forwards what came before and shows the traceback once, at the end; None while the task
    still runs and may write more. `lost` is the name
    of the peer that a PEER_LOST is about, `step` that of the training that lost it.
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
        """Write the report into the job's folder, whole or not at all."""
        folder = job_dir / REPORT_DIR
        folder.mkdir(0o700, exist_ok=True)
        path = folder / f"{name or self.rank}.json"
        stored.write(path, self, durable=False)

    @staticmethod
    def read(job_dir: Path, name: str) -> "TaskReport | None":
        """Report of a task in the job's folder; None when it cannot be read."""
        with suppress(FileNotFoundError, CsrunError):
            return stored.read(job_dir / REPORT_DIR / f"{name}.json", TaskReport, "the report")
        return None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress of a long operation; `total` 0 when unknown, `text` e.g. 'loss 0.41'.

    unit: what is counted, e.g. 'steps', for an operation whose rate is shown.

    Of a training, `loss` is the last step's, `input_share` the part of its time that the wafer has
    waited for batches, `straggler` the one streamer that delays it, if there is one.
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
    """Ask the launcher to start the wafer process of one CS system, as a task of the job.

    It runs under the fork server, so that its death is seen, named and reaped like any other
    task's. What is run is for the receiver to say: a message names a system of the site and the
    number of a run, and no command.
    """

    system: str
    run: int


Message = Progress | SpawnWafer


class JobLink:
    """A task's connection to its launcher: a Unix datagram socket in the job's folder.

    Datagrams are msgpack of one `Message`. A launcher that is gone is a PeerLost for `spawn_wafer`,
    and nothing for `progress`.
    """

    def __init__(self, job_dir: Path, rank: int, node_id: int = 0) -> None:
        self._job_dir = job_dir
        self._rank = rank
        own = link_name(node_id)
        self._name = own if (job_dir / own).exists() else LINK_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._encoder = msgspec.msgpack.Encoder()

    def progress(self, progress: Progress) -> None:
        """Show how far the job is; losing one is no harm."""
        try:
            # A launcher that is stopped must not hold up a training.
            self._send(progress, socket.MSG_DONTWAIT)
        except OSError:
            return

    def spawn_wafer(self, request: SpawnWafer) -> None:
        """Start a wafer process.

        Raises: PeerLost when the launcher is gone.
        """
        try:
            self._send(request, 0)
        except OSError as error:
            raise PeerLost(f"rank {self._rank} lost its launcher: {error}") from error

    def _send(self, message: Message, flags: int) -> None:
        # A socket path is limited to 108 bytes, a job's folder is not: go through its descriptor.
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
    """The report of a task that ends by `error`."""
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
    """One line: the error's own, and what was noted on its way here."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def exit_code_of(error: SystemExit) -> int:
    """The exit code that Python gives to a SystemExit."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
