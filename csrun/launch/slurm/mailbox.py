"""Mailboxes of csrun_wse and the node agents of a Slurm job: files, and bells.

Messages are appended to a file of their sender's in the job's folder, which all nodes share. A
bell carries no data and says that there is something new: a line of output through srun towards
csrun_wse, and SIGURG by scancel towards the node agents, a signal that no other process of the job
notices. So no port is opened, Slurm itself decides who may ring, and the job's folder who may
write. A file is closed after each message and opened to be read: on NFS this is what makes one
side's messages visible to the other.

Source: signal(7) for SIGURG, which does nothing where it is not asked for; nfs(5), close-to-open
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
    """A node agent lives and has found the job's folder; `job_id` is Slurm's.

    `cpus` are those of all its tasks, `machine` is equal for nodes that can share memory and
    sockets, `address` is the IP address under which other nodes reach this one, `account` the one
    that Slurm charges. `versions` are those of what the tasks compute with, by name.
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
    """Every node has reported in: start the planned tasks.

    `shows_progress`: somebody would see it.
    """

    job: JobFile
    shows_progress: bool


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """csrun_wse lives; it is lost after `silence_s` without a message.

    `frees_job`: the job was made for its srun alone, and is for the node agents to give back then.
    """

    silence_s: float
    frees_job: bool


class LetGo(msgspec.Struct, frozen=True, tag="let_go"):
    """Nothing of the job lives any more: end, all nodes but `stays`.

    The last one to go has the job's exit code, which is Slurm's then: the first task that fails has
    srun kill the others, and their codes are higher.
    """

    stays: int | None = None
    exit_code: int = 0


class Left(msgspec.Struct, frozen=True, tag="left"):
    """Last message of a node agent."""


ToNodeAgents = Heartbeat | StartAll | StartTask | SignalTasks | LetGo
FromNodeAgent = Left | NodeReady | TasksReady | TaskEnded | SpawnWafer | Progress | Stopped


MAIL_DIR = "mail"
_CHECKSUM = struct.Struct(">I")
_READ_BYTES = 2 * framing.MAX_BODY_BYTES  # at once: one message at least

Message = TypeVar("Message")


def launcher_box(job_dir: Path) -> Path:
    """The file of what csrun_wse says to all."""
    return job_dir / MAIL_DIR / "launcher"


def node_box(job_dir: Path, node_id: int) -> Path:
    """Mailbox of the messages of a node's agent."""
    return job_dir / MAIL_DIR / str(node_id)


def give_up_file(job_dir: Path) -> Path:
    """The file of a node agent that has left a job without csrun_wse, after a failure."""
    return job_dir / MAIL_DIR / "given_up"


class Outbox:
    """One box as its sender writes it: each message whole and in its turn, or not yet.

    What finds no room waits, and all that comes after it.
    """

    def __init__(self, box: Path) -> None:
        self._box = box
        self._lock = threading.Lock()  # a heart beats in a thread of its own
        self._waiting: deque[bytes] = deque()
        self._whole_bytes = box.stat().st_size if box.exists() else 0
        self._waits_since_s = 0.0
        self.error: OSError | None = None  # of the last try

    @property
    def is_waiting(self) -> bool:
        """True if something has found no room yet."""
        return bool(self._waiting)

    @property
    def waits_s(self) -> float:
        """For how long."""
        return time.monotonic() - self._waits_since_s if self._waiting else 0.0

    @property
    def refusal(self) -> str:
        """Why what waits cannot be written."""
        why = self.error.strerror if self.error is not None else "?"
        return f"{self._box}: job messages cannot be written: {why}"

    def post(self, message: msgspec.Struct) -> bool:
        """Append a message, its checksum before it; False when it has to wait."""
        with self._lock:
            if not self._waiting:
                self._waits_since_s = time.monotonic()
            self._waiting.append(_frame(message))
            return self._append_all()

    def post_or_drop(self, message: msgspec.Struct) -> bool:
        """The same of a message that nobody wants later: it does not wait."""
        with self._lock:
            return self._append_all() and self._append(_frame(message))

    def retry(self) -> bool:
        """Append what waits; True when nothing does any more."""
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
                    file.truncate(self._whole_bytes)  # a part of a message that had no room
                left = memoryview(frame)
                while left:
                    left = left[file.write(left) :]
        except OSError as error:  # here, or on NFS when it is closed
            self.error = error
            return False
        self._whole_bytes += len(frame)
        return True


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return framing.encode(_CHECKSUM.pack(crc32(body)) + body)


class MailboxReader(Generic[Message]):
    """One box, read as it grows."""

    def __init__(self, box: Path, decoder: "msgspec.msgpack.Decoder[Message]") -> None:
        self._box = box
        self._decoder = decoder
        self._offset = 0

    def read(self) -> list[Message]:
        """The messages that came since; one that is not all there yet is left for the next time.

        Raises: CsrunError for what was not posted as it lies there
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
