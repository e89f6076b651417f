"""Rates of the streamers of a layout, from the law of one machine's workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from math import ceil, inf
from sys import maxsize

import msgspec

from csrun.advice.analysis.laws import Fit, disturbance, fit
from csrun.advice.measurements import Measurements, Point
from csrun.site import JobLayout, streaming_single_task_nodes

SATURATED = 0.85  # of the rate of undisturbed workers: below, they slow each other down
BUSY = 0.85  # of the machine's CPUs: above, the CPUs are the shared resource


class Saturation(StrEnum):
    """Resource saturated by the measured workers, so that more of them on a machine do not help."""

    NOTHING = "nothing"
    CPUS = "cpus"
    RESOURCE = "resource"  # a disk, the network, a lock
    REPLAY = "replay"  # each makes all batches, including those of others

    @property
    def spans_nodes(self) -> bool:
        """True if workers on several machines share it."""
        return self in (Saturation.RESOURCE, Saturation.REPLAY)


class ScalingLimit(StrEnum):
    """Limit of the largest layout."""

    NODES = "nodes"  # all nodes that a job may use are used well
    CPUS = "cpus"
    RESOURCE = "resource"
    REPLAY = "replay"
    LINK = "link"  # link of the CS system
    FILES = "files"  # each streamer needs one


LIMIT_OF = {
    Saturation.NOTHING: ScalingLimit.CPUS,  # more tasks than measured, by the CPU time per sample
    Saturation.CPUS: ScalingLimit.CPUS,
    Saturation.RESOURCE: ScalingLimit.RESOURCE,
    Saturation.REPLAY: ScalingLimit.REPLAY,
}


class SiteFacts(msgspec.Struct, frozen=True):
    """Facts about a site for the solver.

    nodes: maximum of a job. one_machine: True if all share this machine's CPUs. link_bytes_per_s:
    input rate of the CS system.
    """

    name: str
    nodes: int
    node_cpus: int
    one_machine: bool
    link_bytes_per_s: float


class StreamerLayout(msgspec.Struct, frozen=True):
    """Layout options of csrun_wse, and the predicted rate of its streamers."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    streamers: int
    samples_per_s: float


@dataclass(frozen=True)
class _WorkerMachine:
    """Workers with the same CPUs each, on a machine like the measured one.

    cpus: CPUs assigned to the workers in rotation; None if each has its own. left: fraction of the
    rate left by other work.
    """

    fit: Fit
    saturation: Saturation
    cpus: int | None
    left: float

    def at(self, workers: float) -> float:
        return self.left * min(self.fit.at(workers), self._in_turn(workers))

    def _in_turn(self, workers: float) -> float:
        """Return the rate of workers on shared CPUs; the most oversubscribed CPUs set the pace."""
        if self.cpus is None or self.fit.ceiling is None:
            return inf
        each, alone = self.fit.cpus, self.fit.at(1)
        wanted = min(each, alone * self.cpus / self.fit.ceiling)
        oversubscription = max(1, ceil(workers * each / self.cpus))
        return workers * alone * min(1.0, each / (oversubscription * wanted))

    @property
    def single_worker_rate(self) -> float:
        """Samples/s of one worker."""
        return self.at(1)


class Scaling:
    """Rates of layouts, by the laws of all measured numbers of CPUs per task.

    If nodes are separate machines and workers share at most CPUs, rates of nodes add up, and a node
    with more CPUs than this machine carries proportionally more workers. Another resource may be
    shared by the nodes, too: then the law applies to the total of all streamers, as it does if each
    streamer makes all batches.

    Other work on this machine continues if the job runs here; nodes of a cluster have none.
    """

    def __init__(self, measured: Measurements, site: SiteFacts) -> None:
        self._site = site
        self._streaming = measured.streaming
        self._growth = site.node_cpus / measured.machine_cpus
        self._most = measured.most_streamers or maxsize
        self._link = site.link_bytes_per_s / measured.sample_bytes
        self._machines = {
            cpus: _machine(points, measured, site.one_machine)
            for cpus, points in _by_cpus(measured).items()
        }

    @property
    def fits(self) -> tuple[Fit, ...]:
        """Laws by CPUs per task."""
        return tuple(machine.fit for machine in self._machines.values())

    @property
    def cpus(self) -> tuple[int, ...]:
        """Measured numbers of CPUs per task."""
        return tuple(self._machines)

    def saturation(self, cpus: int) -> Saturation:
        """Return the resource that workers with this many CPUs have saturated."""
        return self._machines[cpus].saturation

    def layouts(self, nodes: int) -> Iterator[StreamerLayout]:
        """Return all layouts with this many nodes that the data allows, fewest tasks first."""
        for tasks in range(1, self._site.node_cpus + 1):
            possible = 0 < sum(self._split(nodes, tasks)) <= self._most
            for cpus in self.cpus if possible else ():
                if tasks * cpus <= self._site.node_cpus:
                    yield self.layout(nodes, tasks, cpus)

    def layout(self, nodes: int, tasks: int, cpus: int) -> StreamerLayout:
        """Return a layout with its rate."""
        split = self._split(nodes, tasks)
        rate = self._rate(self._machines[cpus], split)
        return StreamerLayout(nodes, tasks, cpus, sum(split), min(rate, self._link))

    def limit(self, cpus: int) -> ScalingLimit:
        """Return the limit of the most tasks with this many CPUs that the site's nodes can run."""
        split = self._split(self._site.nodes, max(1, self._site.node_cpus // cpus))
        machine = self._machines[cpus]
        rate = self._rate(machine, split)
        if rate >= self._link:
            return ScalingLimit.LINK
        if (
            sum(split) > self._most
            and machine.at(self._most) >= SATURATED * self._most * machine.single_worker_rate
        ):
            return ScalingLimit.FILES
        if rate >= SATURATED * sum(split) * machine.single_worker_rate:
            return ScalingLimit.NODES
        return LIMIT_OF[machine.saturation]

    def _split(self, nodes: int, tasks: int) -> tuple[int, ...]:
        """Return the streamers per node. A single pipelined task streams to itself."""
        if self._streaming:
            single = streaming_single_task_nodes()
            return JobLayout(nodes, tasks, 1, single).tasks_by_node[single:]
        first, *others = JobLayout(nodes, tasks, 1, 0).tasks_by_node
        return (first - 1 or int(nodes == 1), *others)

    def _rate(self, machine: _WorkerMachine, split: Sequence[int]) -> float:
        if self._site.one_machine or machine.saturation.spans_nodes:
            return machine.at(sum(split))
        first, *others = split  # all equal
        return self._node(machine, first) + len(others) * self._node(machine, split[-1])

    def _node(self, machine: _WorkerMachine, tasks: int) -> float:
        if not tasks:
            return 0.0
        growth = self._growth
        if tasks <= growth:  # one CPU of the measured machine each
            return tasks * machine.single_worker_rate
        return growth * machine.at(tasks / growth)


def _by_cpus(measured: Measurements) -> dict[int, tuple[Point, ...]]:
    """Group the points by CPUs; for a single-threaded pipeline only the least number."""
    ordered = sorted(measured.points, key=lambda point: point.cpus)
    groups = {cpus: tuple(group) for cpus, group in groupby(ordered, lambda point: point.cpus)}
    return groups if measured.parallel else dict(list(groups.items())[:1])


def _machine(points: Sequence[Point], measured: Measurements, is_here: bool) -> _WorkerMachine:
    found = fit(points, measured.machine_cpus)
    shared = _saturation(found, points, measured.machine_cpus)
    saturation = Saturation.REPLAY if measured.replayed else shared
    if is_here:
        return _WorkerMachine(found, saturation, measured.machine_cpus, found.left)
    return _WorkerMachine(found, saturation, None, 1.0)


def _saturation(found: Fit, points: Sequence[Point], machine_cpus: int) -> Saturation:
    alone, busy = found.at(1), []
    for point in (point for point in points if point.tasks > 1):
        factor = disturbance(point, machine_cpus)
        if factor * point.samples_per_s < SATURATED * point.tasks * alone:
            busy.append(factor * point.busy_cpus)
    if not busy:
        return Saturation.NOTHING
    full = max(busy) >= BUSY * machine_cpus
    return Saturation.CPUS if full else Saturation.RESOURCE
