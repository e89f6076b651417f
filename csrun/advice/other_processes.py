"""CPU use by other processes during a measurement."""

import os
import resource
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from heapq import nlargest
from time import perf_counter

import psutil

from csrun.advice.measurements import BackgroundUse
from csrun.base.safe_text import printable

LEAST_CPUS = 0.1  # threshold to name a program
MOST_NAMES = 3


class BackgroundLoad:
    """CPU use of all other processes than this one and its children, from now on."""

    def __init__(self) -> None:
        self._cpu_s = _cpu_s_by_process()
        self._used_s = _used_s()
        self._started = perf_counter()

    def use(self) -> BackgroundUse:
        """Return CPU seconds per second; only children that have exited count as our own."""
        seconds = perf_counter() - self._started
        cpus = max(0.0, _used_s() - self._used_s) / seconds
        return BackgroundUse(cpus, self._busiest(seconds))

    def _busiest(self, seconds: float) -> tuple[str, ...]:
        """Return the names of the busiest programs, sorted."""
        used_s: defaultdict[str, float] = defaultdict(float)
        for (pid, name), cpu_s in _cpu_s_by_process().items():
            used_s[name] += cpu_s - self._cpu_s.get((pid, name), 0.0)
        most = nlargest(MOST_NAMES, used_s, key=used_s.__getitem__)
        return tuple(name for name in most if used_s[name] >= LEAST_CPUS * seconds)


def _used_s() -> float:
    """CPU seconds of all processes except our own."""
    times = psutil.cpu_times(percpu=True)
    used_s = sum(times[cpu].user + times[cpu].system for cpu in os.sched_getaffinity(0))
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        own = resource.getrusage(who)
        used_s -= own.ru_utime + own.ru_stime
    return float(used_s)


def _cpu_s_by_process() -> Mapping[tuple[int, str], float]:
    """CPU seconds of each other process, by id and name."""
    me = psutil.Process()
    own = {me.pid, *(child.pid for child in me.children(recursive=True))}
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in own:
                times = process.cpu_times()
                found[process.pid, printable(process.name())] = times.user + times.system
    return found
