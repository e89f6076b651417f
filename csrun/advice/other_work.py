"""What else runs on this machine while a command does its work."""

import os
import resource
from time import perf_counter

import psutil


class OtherWork:
    """The use of this process's CPUs by all but itself and its children, from now on."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._used_s = _used_s()

    def cpus(self) -> float:
        """CPU seconds a second; of children only those that have ended are known as our own."""
        return max(0.0, _used_s() - self._used_s) / (perf_counter() - self._started)


def _used_s() -> float:
    """CPU seconds of the machine's processes, less our own."""
    times = psutil.cpu_times(percpu=True)
    used_s = sum(times[cpu].user + times[cpu].system for cpu in os.sched_getaffinity(0))
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        own = resource.getrusage(who)
        used_s -= own.ru_utime + own.ru_stime
    return float(used_s)
