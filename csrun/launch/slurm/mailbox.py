"""Mailboxes of csrun_wse and the node agents of a Slurm job: files, and notifications.

A sender appends messages to its own file in the job folder, which all nodes share. A notification
(bell) carries no data and only says that there are new messages: a line of output through srun
towards csrun_wse, and SIGURG by scancel towards the node agents, a signal that other processes of
the job ignore. No port is opened; Slurm controls who may notify, and the job folder's permissions
who may write. A file is closed after each message and reopened for reading, which on NFS makes one
side's messages visible to the other.

Source: signal(7) for SIGURG, whose default action is to ignore; nfs(5), close-to-open
"""

import os
import struct
import threading
import time
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar
from zlib import crc32

import msgspec

from csrun.base import framing
from csrun.base.errors import CsrunError
from csrun.base.files import open_regular
from csrun.base.stored import UNREADABLE
from csrun.context import JobFile, Progress, SpawnWafer
from csrun.launch.process.protocol import SignalTasks, StartTask, Stopped, TaskEnded, TasksReady


class NodeReady(msgspec.Struct, frozen=True, tag="node_ready"):
    """A node agent is running and has found the job folder; `job_id` is Slurm's.

    cpus: CPUs of all its tasks.
    machine: equal for nodes that can share memory and sockets.
    address: IP address at which other nodes reach this one.
    account: account that Slurm charges.
    versions: versions of the packages that tasks compute with, by name.
    """

    node_id: int
    job_id: int
    node: str
    cpus: tuple[int, ...]
    machine: str
    address: str
    account: str = ""
    versions: dict[str, str] = {}


class StartAll(msgspec.Struct, frozen=True, tag="start_all"):
    """Every node has reported: start the planned tasks.

    shows_progress: progress is displayed, so tasks should send it.
    """

    job: JobFile
    shows_progress: bool


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """csrun_wse is alive; it counts as lost after `silence_s` without a message.

    frees_job: the job was created for its srun only, so the node agents end it in that case.
    """

    silence_s: float
    frees_job: bool


class ReleaseAgents(msgspec.Struct, frozen=True, tag="let_go"):
    """All tasks of the job have ended: all node agents but `stays` exit.

    The last one exits with the job's exit code, which becomes Slurm's. It must be the last, because
    after a failed task srun kills the others, whose exit codes are higher.
    """

    stays: int | None = None
    exit_code: int = 0


class AgentExited(msgspec.Struct, frozen=True, tag="left"):
    """Last message of a node agent."""


ToNodeAgents = Heartbeat | StartAll | StartTask | SignalTasks | ReleaseAgents
FromNodeAgent = AgentExited | NodeReady | TasksReady | TaskEnded | SpawnWafer | Progress | Stopped


MAIL_DIR = "mail"
_CHECKSUM = struct.Struct(">I")
_READ_BYTES = 2 * framing.MAX_BODY_BYTES  # per read: at least one message

Message = TypeVar("Message")


def launcher_mailbox(job_dir: Path) -> Path:
    """Return the file of csrun_wse's messages to all node agents."""
    return job_dir / MAIL_DIR / "launcher"


def node_mailbox(job_dir: Path, node_id: int) -> Path:
    """Return the file of a node agent's messages."""
    return job_dir / MAIL_DIR / str(node_id)


def abandoned_file(job_dir: Path) -> Path:
    """Return the file by which a node agent reports that it left a job without csrun_wse after a
    failure.
    """
    return job_dir / MAIL_DIR / "given_up"


class Outbox:
    """Mailbox as seen by its sender: messages are written completely and in order, or queued.

    A message that cannot be written, for example on a full disk, and all after it, wait in memory.
    """

    def __init__(self, box: Path) -> None:
        self._box = box
        self._lock = threading.Lock()  # the heartbeat runs in a separate thread
        self._waiting: deque[bytes] = deque()
        self._whole_bytes = box.stat().st_size if box.exists() else 0
        self._waits_since_s = 0.0
        self.error: OSError | None = None  # of the last attempt

    @property
    def is_waiting(self) -> bool:
        """True if messages are queued."""
        return bool(self._waiting)

    @property
    def waits_s(self) -> float:
        """Time for which messages have been queued, in seconds."""
        return time.monotonic() - self._waits_since_s if self._waiting else 0.0

    @property
    def refusal(self) -> str:
        """Reason why the queued messages cannot be written."""
        why = self.error.strerror if self.error is not None else "?"
        return f"{self._box}: job messages cannot be written: {why}"

    def post(self, message: msgspec.Struct) -> bool:
        """Append a message with its checksum; False if it was queued."""
        with self._lock:
            if not self._waiting:
                self._waits_since_s = time.monotonic()
            self._waiting.append(_frame(message))
            return self._append_all()

    def post_or_drop(self, message: msgspec.Struct) -> bool:
        """Append a message, or drop it if it cannot be written now."""
        with self._lock:
            return self._append_all() and self._append(_frame(message))

    def retry(self) -> bool:
        """Append the queued messages; True if none is left."""
        with self._lock:
            return self._append_all()

    def _append_all(self) -> bool:
        while self._waiting and self._append(self._waiting[0]):
            self._waiting.popleft()
        return not self._waiting

    def _append(self, frame: bytes) -> bool:
        try:
            with self._box.open("ab", buffering=0) as file:
                if file.tell() != self._whole_bytes:
                    file.truncate(self._whole_bytes)  # remove the incomplete part of a message
                left = memoryview(frame)
                while left:
                    left = left[file.write(left) :]
        except OSError as error:  # write errors appear here, or on NFS at close
            self.error = error
            return False
        self._whole_bytes += len(frame)
        return True


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return framing.encode(_CHECKSUM.pack(crc32(body)) + body)


class MailboxReader(Generic[Message]):
    """Reader of one growing mailbox."""

    def __init__(self, box: Path, decoder: "msgspec.msgpack.Decoder[Message]") -> None:
        self._box = box
        self._decoder = decoder
        self._offset = 0

    def read(self) -> list[Message]:
        """Return new messages; an incomplete one is left for the next call.

        Raises: CsrunError for data that does not match its checksum
        """
        try:
            with open(open_regular(self._box, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
            bodies, taken = framing.decode(data)
            messages = list(map(self._message, bodies))
        except FileNotFoundError:
            return []
        except (OSError, *UNREADABLE) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise CsrunError(
                f"{self._box}: job messages cannot be read: {why}; start the job again"
            ) from error
        self._offset += taken
        return messages

    def _message(self, body: bytes) -> Message:
        if len(body) <= _CHECKSUM.size or _CHECKSUM.unpack_from(body)[0] != crc32(
            body[_CHECKSUM.size :]
        ):
            raise framing.FrameError("message checksum does not match")
        return self._decoder.decode(body[_CHECKSUM.size :])
