"""What processes take: memory that is theirs in fair shares, and CPU time."""

import re
from collections.abc import Iterable
from pathlib import Path

import psutil


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size of living processes together: a page shared by n counts 1/n for each.

    Units: MiB. Source: proc(5), /proc/pid/smaps_rollup
    """
    total_kb = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:  # it has just ended
            continue
        found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
        total_kb += int(found[1]) if found else 0
    return total_kb / 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that processes have used so far, user and system."""
    return sum(times.user + times.system for times in (psutil.Process(p).cpu_times() for p in pids))


def family(pid: int) -> list[int]:
    """A process and all that descends from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
