"""Which CS systems a job has had, and when: told by its chief, read by who asks about the job."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from csrun.base.files import write_whole
from csrun.context.link import UNREADABLE

USES_FILE = "systems.json"


class SystemUse(msgspec.Struct, frozen=True):
    """One lease of a system; None for what has not come, or that nobody lived to tell."""

    system: str
    asked: datetime
    taken: datetime | None = None
    given_back: datetime | None = None


class UseLog:
    """The leases of a job, in its folder. A disk that is full loses them, and ends no run."""

    def __init__(self, job_dir: Path) -> None:
        self._path = job_dir / USES_FILE
        self._uses = [*read_uses(job_dir)]

    def ask(self, system: str) -> None:
        """A system is wanted from now on."""
        self._uses.append(SystemUse(system, now()))
        self._write()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The system that was asked for last is held meanwhile: to be entered with the lease."""
        self._change(taken=now())
        try:
            yield
        finally:
            self._change(given_back=now())

    def _change(self, **times: datetime) -> None:
        self._uses[-1] = msgspec.structs.replace(self._uses[-1], **times)
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            write_whole(self._path, msgspec.json.encode(self._uses) + b"\n", durable=False)


def read_uses(job_dir: Path) -> tuple[SystemUse, ...]:
    """What a job's chief has told so far; nothing when a crash of the machine has damaged it."""
    try:
        data = (job_dir / USES_FILE).read_bytes()
        return msgspec.json.decode(data, type=tuple[SystemUse, ...])
    except (FileNotFoundError, *UNREADABLE):
        return ()


def now() -> datetime:
    """This moment, as a record keeps it."""
    return datetime.now(UTC)
