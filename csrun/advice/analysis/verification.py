"""A run of what is recommended, beside its prediction."""

import os
import resource
from time import perf_counter

import msgspec
import psutil

from csrun.advice.analysis.result import Analysis, Verified
from csrun.advice.analysis.scaling import Layout, Scaling
from csrun.advice.measurements import Fed

STREAMERS_PER_CPU = 16  # each is a process with the data set in its hands


def runnable(analysis: Analysis) -> Layout:
    """The recommended layout, or the largest part of it that this machine can carry.

    Where the nodes are machines of their own, they carry it.
    """
    wanted = analysis.solution.layout
    most = STREAMERS_PER_CPU * analysis.measurements.machine_cpus
    if not analysis.site.one_machine or wanted.streamers <= most:
        return wanted
    scaling = Scaling(analysis.measurements, analysis.site)
    parts = (
        scaling.layout(nodes, tasks, wanted.cpus_per_task)
        for nodes in range(1, wanted.nodes + 1)
        for tasks in range(1, wanted.tasks_per_node + 1)
    )
    return max(
        (part for part in parts if 0 < part.streamers <= most), key=lambda part: part.streamers
    )


def verified(analysis: Analysis, layout: Layout, fed: Fed, other_cpus: float) -> Analysis:
    """The analysis with what a run of `layout` delivered."""
    deviation = fed.samples_per_s / layout.samples_per_s - 1
    return msgspec.structs.replace(analysis, verified=Verified(layout, fed, deviation, other_cpus))


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
