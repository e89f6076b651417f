"""The job as its tasks see it, in files of its folder: the plan, written before any task starts,
the progress of the run, and the CS systems that it has had.
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
LIVE_LOCK = "live.lock"  # held by the launcher, and named after it
TELEMETRY_FILE = "telemetry.json"
SHOWN_MODE = 0o640  # whatever the umask: on a board the group reads it, a job's folder is private


def read_secret(path: Path) -> bytes:
    """The secret of a job, from its file.

    Raises: CsrunError for one that another account can have written, or read, and for none
    """
    try:
        found = find(path, SECRET_BYTES, follow=False)
    except OSError as error:
        raise CsrunError(f"{path}: job secret cannot be read: {error.strerror}") from error
    # Whoever could have written it could join the job as one of its tasks.
    if found.uid == os.geteuid() and not found.mode & 0o077 and len(found.data) == SECRET_BYTES:
        return found.data
    raise CsrunError(
        f"{path}: job secret must be private and {SECRET_BYTES} bytes, got owner"
        f" {account_name(found.uid)}, mode {found.mode & 0o777:04o}, {len(found.data)} bytes:"
        " another account has modified the job folder"
    )


def ended_file(job_dir: Path, rank: int) -> Path:
    """The file that the launcher makes when a task has ended well: nobody need wait for it."""
    return job_dir / ENDED_DIR / str(rank)


class Role(StrEnum):
    """Role of a task."""

    CHIEF = "chief"
    STREAMER = "streamer"
    MEMORYX = "memoryx"
    SWARMX = "swarmx"
    WAFER = "wafer"
    TASK = "task"  # a command that is not one of csrun's interpreters: no role in a training


def peer_name(role: Role, rank: int = 0, system: str | None = None) -> str:
    """Names of the peers of a run: there are many streamers, and a wafer a system.

    MemoryX is mostly one task, of rank 1; further ones, and SwarmX, have their rank after the name.
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
    """Machines of a job's tasks, and so the wires between them."""

    SHARED = "shared"  # one machine, whatever its nodes are called: Unix sockets, shared memory
    SEPARATE = "separate"  # every node is a machine of its own: TCP from one to another


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of a task: its name, equal for tasks that share it, and its IP address."""

    name: str
    address: str


class TaskEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One planned task: its rank, its role, and where it runs.

    `address` is the IP address under which tasks of other nodes reach this one; of use only in a
    job whose hosts are separate.
    """

    rank: int
    role: Role
    node: str
    node_id: int
    local_rank: int
    cpus: tuple[int, ...]
    address: str = ""


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`job.json`: what every task of the job may know.

    `mode` is the execution mode that the interpreter of the command needs, None for a command
    that is not one of csrun's interpreters. `site` is the site's name or the path of its file.
    `systems` are the CS systems that a cluster's scheduler has given the job, if it has.
    `grace_s` is the time from the word to end until a task is killed, `max_restarts` how often its
    tasks may start again after a failure, `time_limit_s` the time that the job has from their first
    start. `board` is the folder where other accounts of a shared site read how far the job is;
    without it that lies in the job's own folder.
    With `hosts` separate, two tasks share a machine exactly when their entries name the same node.
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
        """The folder of the job's telemetry and its uses of systems."""
        return job_dir if self.board is None else Path(self.board)

    def write(self, job_dir: Path) -> None:
        """Write the file into `job_dir`, whole or not at all."""
        stored.write(job_dir / JOB_FILE, self, durable=False)

    @staticmethod
    def read(job_dir: Path) -> "JobFile":
        """Read the file of a job's folder.

        Raises: CsrunError for one that a crash of the machine has damaged, and for none
        """
        path = job_dir / JOB_FILE
        try:
            return stored.read(path, JobFile, "the job's plan", "start the job again")
        except FileNotFoundError as error:
            raise CsrunError(
                f"{path}: job plan not found: the folder is removed when the job ends"
            ) from error


class Telemetry(msgspec.Struct, frozen=True):
    """`telemetry.json`: how far the run on its CS systems is, said by its chief now and then.

    systems: those that share each batch; arena_bytes: of each. run: e.g. `training`; last_step,
    step_rate_per_s: None when unknown; detail: e.g. its loss. loss, input_share, straggler: as in
    Progress.

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
        """Write the file into `job_dir`, whole or not at all."""
        stored.write(job_dir / TELEMETRY_FILE, self, durable=False, mode=SHOWN_MODE)

    @staticmethod
    def read(job_dir: Path) -> "Telemetry | None":
        """Read the file of a job's folder; None when there is none, or not one like this."""
        with suppress(FileNotFoundError, CsrunError):
            return stored.read_owned(job_dir / TELEMETRY_FILE, Telemetry, "the telemetry").value
        return None


USES_FILE = "systems.json"


class SystemUse(msgspec.Struct, frozen=True):
    """One lease of a system; None for what has not come, or that nobody lived to tell."""

    system: str
    asked: datetime
    taken: datetime | None = None
    given_back: datetime | None = None


class SystemUses(msgspec.Struct, frozen=True):
    """`systems.json`: the leases of a job, in their order."""

    uses: tuple[SystemUse, ...]


class UseLog:
    """The leases of a job, in its folder. A disk that is full loses them, and ends no run."""

    def __init__(self, job_dir: Path) -> None:
        self._path = job_dir / USES_FILE
        self._uses = [*read_uses(job_dir)]
        self._asked = 0

    def ask(self, *systems: str) -> None:
        """Systems are wanted from now on, all of them or none."""
        asked, self._asked = now(), len(systems)
        self._uses += [SystemUse(system, asked) for system in systems]
        self._write()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Record the leases of the last request while inside."""
        self._change(taken=now())
        try:
            yield
        finally:
            self._change(given_back=now())

    def _change(self, **times: datetime) -> None:
        for index in range(len(self._uses) - self._asked, len(self._uses)):
            self._uses[index] = msgspec.structs.replace(self._uses[index], **times)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            uses = SystemUses(tuple(self._uses))
            stored.write(self._path, uses, durable=False, mode=SHOWN_MODE)


def read_uses(job_dir: Path) -> tuple[SystemUse, ...]:
    """Telemetry of a job's chief so far; none when a crash of the machine has damaged it."""
    with suppress(FileNotFoundError, CsrunError):
        return stored.read_owned(job_dir / USES_FILE, SystemUses, "the leases").value.uses
    return ()


def now() -> datetime:
    """This moment, as a record keeps it."""
    return datetime.now(UTC)
