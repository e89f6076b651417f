"""CPU time and memory of a job's tasks on this machine; a process belongs to the log it writes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class TaskUsage(msgspec.Struct, frozen=True, array_like=True):
    """Usage of one task's processes; `name` is that of its log.

    state: the kernel's letter for the oldest process.
    cpu_s: CPU time since the start.
    memory_bytes: resident memory; memory shared by processes is counted in each.

    Units: age_s in seconds since the oldest process began
    Source: proc_pid_stat(5)
    """

    name: str
    pid: int
    state: str
    age_s: float
    cpu_s: float
    memory_bytes: int


def measure(logs: Path) -> dict[str, TaskUsage]:
    """Measure the usage of tasks whose logs are in a folder, by log name.

    A task's child processes inherit its log and are included.
    """
    found: dict[str, TaskUsage] = {}
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    for pid, name in _writers(f"{logs.resolve()}/"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            found[name] = _joined(found.get(name), _usage(name, pid, up_s))
    return found


def _writers(folder: str) -> Iterator[tuple[int, str]]:
    """Return the processes whose standard output is a log in a folder."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            log = os.readlink(f"/proc/{entry.name}/fd/1")
        except OSError:  # it has ended, or belongs to another account
            continue
        if log.startswith(folder) and log.endswith(".log"):
            yield int(entry.name), log[len(folder) : -len(".log")]


def _usage(name: str, pid: int, up_s: float) -> TaskUsage:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    state, ticks, begun, pages = fields[0], sum(map(int, fields[11:15])), fields[19], fields[21]
    return TaskUsage(
        name,
        pid,
        state,
        round(max(0.0, up_s - int(begun) / _TICKS_PER_S), 3),
        ticks / _TICKS_PER_S,
        int(pages) * _PAGE_BYTES,
    )


def _joined(first: TaskUsage | None, second: TaskUsage) -> TaskUsage:
    if first is None:
        return second
    oldest = max(first, second, key=lambda usage: usage.age_s)
    return msgspec.structs.replace(
        oldest,
        cpu_s=first.cpu_s + second.cpu_s,
        memory_bytes=first.memory_bytes + second.memory_bytes,
    )
