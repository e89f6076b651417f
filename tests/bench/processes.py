"""Memory of processes, with shared pages in proportion, and their CPU time."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

#: A mapping of smaps: offset in its file, inode, and its lines.
_MAPPING = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) \S+ (\d+)[^\n]*\n(.*?^VmFlags)",
    re.MULTILINE | re.DOTALL,
)


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


def job_mb(pids: Iterable[int]) -> float:
    """Memory of processes together, as if no other program shared their libraries.

    Pages of files count once, by the mapping that has most of them; other pages by their shares.
    Units: MiB. Source: proc(5), /proc/pid/smaps
    """
    own_kb, files = 0.0, dict[tuple[str, str], int]()
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:  # it has just ended
            continue
        for offset, inode, rest in _MAPPING.findall(text):
            found = dict(re.findall(r"^(Rss|Pss|Anonymous): +(\d+) kB", rest, re.MULTILINE))
            rss, pss, anonymous = (int(found[name]) for name in ("Rss", "Pss", "Anonymous"))
            if inode == "0":
                own_kb += pss
            elif rss:
                own_kb += pss * anonymous / rss  # what was written to
                place = (inode, offset)
                files[place] = max(files.get(place, 0), rss - anonymous)
    return (own_kb + sum(files.values())) / 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that processes have used so far, user and system."""
    return sum(times.user + times.system for times in (psutil.Process(p).cpu_times() for p in pids))


def bytes_moved(pids: Iterable[int]) -> tuple[int, int]:
    """What living processes have had read from disks so far, and written to them.

    A process has the bytes of the children that it has waited for among its own: those of one that
    has ended are its parent's. Pages count as written when they are changed.
    Source: proc(5), /proc/pid/io
    """
    read = written = 0
    for pid in pids:
        with suppress(psutil.Error):  # it has just ended
            counters = psutil.Process(pid).io_counters()
            read, written = read + counters.read_bytes, written + counters.write_bytes
    return read, written


def rss_mb() -> float:
    """Resident memory of this process. Units: MiB"""
    return _status_kb("VmRSS") / 1024


def peak_rss_mb() -> float:
    """The most that this process has had resident. Units: MiB. Source: proc(5), status"""
    return _status_kb("VmHWM") / 1024


def _status_kb(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def family(pid: int) -> list[int]:
    """A process and all that descends from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


OPENBLAS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def with_and_without_openblas(script: str) -> None:
    """Run a benchmark with the environment unchanged, and without OpenBLAS's variables.

    They choose its core, and slow NumPy's products. Each run is a separate process, which gets
    the name of its settings; where none is set there is one.
    """
    without = {name: value for name, value in os.environ.items() if name not in OPENBLAS}
    environments = {"BLAS as found": dict(os.environ), "BLAS unset": without}
    if environments["BLAS as found"] == without:
        del environments["BLAS as found"]
    for settings, environment in environments.items():
        subprocess.run([sys.executable, script, settings], env=environment, check=True)
