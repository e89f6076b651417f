"""The job as its tasks see it, in files of the job folder.

These are the plan, written before any task starts, the progress of the run, and the leases of CS
systems.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.base.files import account_name, find
from csrun.base.mode import GRACE_S, ExecutionMode

JOB_FILE = "job.json"
SECRET_FILE = "secret"
SECRET_BYTES = 32
ENDED_DIR = "ended"
REASON_FILE = "reason_to_end"
RUNS_DIR = "runs"
LIVE_LOCK = "live.lock"  # held by the launcher, named after its process
TELEMETRY_FILE = "telemetry.json"
# whatever the umask: in a board folder the group reads the file; a job folder is private
SHOWN_MODE = 0o640


def read_secret(path: Path) -> bytes:
    """Read the secret of a job from its file.

    Raises: CsrunError if the file is missing, or if another account could have written or read it
    """
    try:
        found = find(path, SECRET_BYTES, follow=False)
    except OSError as error:
        raise CsrunError(f"{path}: job secret cannot be read: {error.strerror}") from error
    # Whoever could write the file could join the job as one of its tasks.
    if found.uid == os.geteuid() and not found.mode & 0o077 and len(found.data) == SECRET_BYTES:
        return found.data
    raise CsrunError(
        f"{path}: job secret must be private and {SECRET_BYTES} bytes, got owner"
        f" {account_name(found.uid)}, mode {found.mode & 0o777:04o}, {len(found.data)} bytes:"
        " another account has modified the job folder"
    )


def ended_file(job_dir: Path, rank: int) -> Path:
    """Return the file that the launcher creates when a task has ended without error.

    Other tasks need not wait for that task.
    """
    return job_dir / ENDED_DIR / str(rank)


class Role(StrEnum):
    """Role of a task."""

    CHIEF = "chief"
    STREAMER = "streamer"
    MEMORYX = "memoryx"
    SWARMX = "swarmx"
    WAFER = "wafer"
    # task of a command that is not one of csrun's interpreters: no role in a training
    TASK = "task"


def peer_name(role: Role, rank: int = 0, system: str | None = None) -> str:
    """Return the name of a peer of the run: its role, with a number if there are several.

    MemoryX of rank 1 is named without its rank; further MemoryX tasks, and SwarmX, with it.
    """
    match role:
        case Role.MEMORYX if rank > 1:
            return f"{role} {rank}"
        case Role.STREAMER | Role.SWARMX:
            return f"{role} {rank}"
        case Role.WAFER:
            return f"{role} {system}"
    return role.value


class Hosts(StrEnum):
    """Machines of a job's tasks, which determine how tasks connect."""

    SHARED = "shared"  # all nodes are one machine: Unix sockets, shared memory
    SEPARATE = "separate"  # each node is a separate machine: TCP between them


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Machine of a task: its name, equal for tasks on the same machine, and its IP address."""

    name: str
    address: str


class TaskEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One planned task: its rank, its role, and its node.

    address: IP address at which tasks on other nodes reach this one; only used if hosts are
        separate.
    """

    rank: int
    role: Role
    node: str
    node_id: int
    local_rank: int
    cpus: tuple[int, ...]
    address: str = ""


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`job.json`: data that all tasks of a job share.

    mode: execution mode of the command's interpreter; None if the command is not one of csrun's
        interpreters.
    site: name of the site, or path of its file.
    systems: CS systems that a cluster's scheduler allocated to the job.
    grace_s: time between the signal to end and the kill of a task.
    max_restarts: maximum number of restarts of the tasks after a failure.
    time_limit_s: time limit of the job from the first start of its tasks.
    board: folder in which other accounts of a shared site read the job's progress; None: the job
        folder.
    hosts: if separate, two tasks share a machine exactly if their entries name the same node.
    """

    job_id: int
    mode: ExecutionMode | None
    command: tuple[str, ...]
    working_dir: str
    site: str
    nodes: int
    cpus_per_task: int
    tasks: tuple[TaskEntry, ...]
    systems: tuple[str, ...] = ()
    hosts: Hosts = Hosts.SHARED
    grace_s: float = GRACE_S
    max_restarts: int = 0
    time_limit_s: int | None = None
    board: str | None = None

    def telemetry_dir(self, job_dir: Path) -> Path:
        """Folder of the job's telemetry and of its leases."""
        return job_dir if self.board is None else Path(self.board)

    def write(self, job_dir: Path) -> None:
        """Write the file into `job_dir` atomically."""
        stored.write(job_dir / JOB_FILE, self, durable=False)

    @staticmethod
    def read(job_dir: Path) -> "JobFile":
        """Read the file of a job folder.

        Raises: CsrunError if it is missing, or was damaged by a crash of the machine
        """
        path = job_dir / JOB_FILE
        try:
            return stored.read(path, JobFile, "the job's plan", "start the job again")
        except FileNotFoundError as error:
            raise CsrunError(
                f"{path}: job plan not found: the folder is removed when the job ends"
            ) from error


class Telemetry(msgspec.Struct, frozen=True):
    """`telemetry.json`: progress of the run, published by its chief at intervals.

    systems: CS systems that share each batch.
    arena_bytes: memory used on each system.
    run: kind of the run, e.g. `training`.
    last_step, step_rate_per_s: None when unknown.
    detail: text such as the loss.
    loss, input_share, straggler: as in Progress.

    Units: updated_s in seconds since the epoch
    """

    systems: tuple[str, ...]
    run: str
    step: int
    last_step: int | None
    step_rate_per_s: float | None
    arena_bytes: int
    detail: str
    updated_s: float
    loss: float | None = None
    input_share: float | None = None
    straggler: str = ""

    def write(self, job_dir: Path) -> None:
        """Write the file into `job_dir` atomically."""
        stored.write(job_dir / TELEMETRY_FILE, self, durable=False, mode=SHOWN_MODE)

    @staticmethod
    def read(job_dir: Path) -> "Telemetry | None":
        """Read the file of a job folder; None if it is missing or invalid."""
        with suppress(FileNotFoundError, CsrunError):
            return stored.read_owned(job_dir / TELEMETRY_FILE, Telemetry, "the telemetry").value
        return None


USES_FILE = "systems.json"


class LeaseRecord(
    msgspec.Struct, frozen=True, rename={"requested": "asked", "released": "given_back"}
):
    """One lease of a system; None for events that have not happened, or were not recorded."""

    system: str
    requested: datetime
    taken: datetime | None = None
    released: datetime | None = None


class LeaseRecords(msgspec.Struct, frozen=True):
    """`systems.json`: the leases of a job, in order."""

    uses: tuple[LeaseRecord, ...]


class LeaseLog:
    """Log of a job's leases, in its folder. On a full disk entries are lost; the run continues."""

    def __init__(self, job_dir: Path) -> None:
        self._path = job_dir / USES_FILE
        self._uses = [*read_leases(job_dir)]
        self._requested = 0

    def record_request(self, *systems: str) -> None:
        """Record that the job requests these systems; it gets all of them or none."""
        asked, self._requested = now(), len(systems)
        self._uses += [LeaseRecord(system, asked) for system in systems]
        self._write()

    @contextmanager
    def record_lease(self) -> Iterator[None]:
        """Context manager that records the leases of the last request."""
        self._change(taken=now())
        try:
            yield
        finally:
            self._change(released=now())

    def _change(self, **times: datetime) -> None:
        for index in range(len(self._uses) - self._requested, len(self._uses)):
            self._uses[index] = msgspec.structs.replace(self._uses[index], **times)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            uses = LeaseRecords(tuple(self._uses))
            stored.write(self._path, uses, durable=False, mode=SHOWN_MODE)


def read_leases(job_dir: Path) -> tuple[LeaseRecord, ...]:
    """Return the leases of a job so far; none if a crash of the machine has damaged the file."""
    with suppress(FileNotFoundError, CsrunError):
        return stored.read_owned(job_dir / USES_FILE, LeaseRecords, "the leases").value.uses
    return ()


def now() -> datetime:
    """Return the current time in the format of records."""
    return datetime.now(UTC)
