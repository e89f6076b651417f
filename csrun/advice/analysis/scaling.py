"""From the law of one machine's workers to what the streamers of a whole layout deliver."""

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

SATURATED = 0.85  # of what as many workers would do alone: below, they are in each other's way
BUSY = 0.85  # of the machine's CPUs: above, it is these that they share


class Saturation(StrEnum):
    """What the workers measured have used up, so that more of them on a machine bring no more."""

    NOTHING = "nothing"
    CPUS = "cpus"
    RESOURCE = "resource"  # a disk, the network, a lock
    REPLAY = "replay"  # each makes all batches, the others' included

    @property
    def spans_nodes(self) -> bool:
        """Whether it is the same for workers of several machines."""
        return self in (Saturation.RESOURCE, Saturation.REPLAY)


class ScalingLimit(StrEnum):
    """What keeps the largest layout from delivering more."""

    NODES = "nodes"  # all that a job may have are used well
    CPUS = "cpus"
    RESOURCE = "resource"
    REPLAY = "replay"
    LINK = "link"  # of the CS system
    FILES = "files"  # of which each streamer needs one


LIMIT_OF = {
    # More tasks than were measured, by the CPU time of a sample.
    Saturation.NOTHING: ScalingLimit.CPUS,
    Saturation.CPUS: ScalingLimit.CPUS,
    Saturation.RESOURCE: ScalingLimit.RESOURCE,
    Saturation.REPLAY: ScalingLimit.REPLAY,
}


class SiteFacts(msgspec.Struct, frozen=True):
    """What the solver knows of a site.

    nodes: how many a job may take. one_machine: whether they all share this machine's CPUs.
    link_bytes_per_s: what the CS system takes in.
    """

    name: str
    nodes: int
    node_cpus: int
    one_machine: bool
    link_bytes_per_s: float


class StreamerLayout(msgspec.Struct, frozen=True):
    """Numbers for csrun_wse, and what its streamers are predicted to deliver."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    streamers: int
    samples_per_s: float


@dataclass(frozen=True)
class _WorkerMachine:
    """Workers with the same CPUs each, on a machine like the one where they were measured.

    cpus: those that the workers are dealt to in turn; None where each has its own. left: the share
    of their work that other work leaves to the workers.
    """

    fit: Fit
    saturation: Saturation
    cpus: int | None
    left: float

    def at(self, workers: float) -> float:
        return self.left * min(self.fit.at(workers), self._in_turn(workers))

    def _in_turn(self, workers: float) -> float:
        """Batches are taken in turn: the most oversubscribed CPUs set the pace of all."""
        if self.cpus is None or self.fit.ceiling is None:
            return inf
        each, alone = self.fit.cpus, self.fit.at(1)
        wanted = min(each, alone * self.cpus / self.fit.ceiling)
        oversubscription = max(1, ceil(workers * each / self.cpus))
        return workers * alone * min(1.0, each / (oversubscription * wanted))

    @property
    def alone(self) -> float:
        """Samples a second of one worker."""
        return self.at(1)


class Scaling:
    """What layouts deliver, by the laws of all measured numbers of CPUs a task.

    Where every node is a machine of its own, and the workers share its CPUs at most, nodes add up,
    and a node with more CPUs than this machine carries more workers in proportion. A resource that
    is no CPU may be one that the nodes share, too: all streamers together follow the law then, as
    those do that make each other's batches.
    Other work on this machine goes on where the job is to run here; nodes of a cluster have none.
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
        """The laws, by CPUs a task."""
        return tuple(machine.fit for machine in self._machines.values())

    @property
    def cpus(self) -> tuple[int, ...]:
        """The numbers of CPUs a task that were measured."""
        return tuple(self._machines)

    def saturation(self, cpus: int) -> Saturation:
        """What workers of so many CPUs have used up."""
        return self._machines[cpus].saturation

    def layouts(self, nodes: int) -> Iterator[StreamerLayout]:
        """All layouts of so many nodes that have a streamer, and no more than the data can be split
        among; the one with fewest tasks first.
        """
        for tasks in range(1, self._site.node_cpus + 1):
            possible = 0 < sum(self._split(nodes, tasks)) <= self._most
            for cpus in self.cpus if possible else ():
                if tasks * cpus <= self._site.node_cpus:
                    yield self.layout(nodes, tasks, cpus)

    def layout(self, nodes: int, tasks: int, cpus: int) -> StreamerLayout:
        """A layout with what it delivers."""
        split = self._split(nodes, tasks)
        rate = self._rate(self._machines[cpus], split)
        return StreamerLayout(nodes, tasks, cpus, sum(split), min(rate, self._link))

    def limit(self, cpus: int) -> ScalingLimit:
        """What bounds all the tasks of so many CPUs that the site's nodes take."""
        split = self._split(self._site.nodes, max(1, self._site.node_cpus // cpus))
        machine = self._machines[cpus]
        rate = self._rate(machine, split)
        if rate >= self._link:
            return ScalingLimit.LINK
        if (
            sum(split) > self._most
            and machine.at(self._most) >= SATURATED * self._most * machine.alone
        ):
            return ScalingLimit.FILES
        if rate >= SATURATED * sum(split) * machine.alone:
            return ScalingLimit.NODES
        return LIMIT_OF[machine.saturation]

    def _split(self, nodes: int, tasks: int) -> tuple[int, ...]:
        """Streamers on each node. A single pipelined task streams to itself."""
        if self._streaming:
            single = streaming_single_task_nodes()
            return JobLayout(nodes, tasks, 1, single).tasks_by_node[single:]
        first, *others = JobLayout(nodes, tasks, 1, 0).tasks_by_node
        return (first - 1 or int(nodes == 1), *others)

    def _rate(self, machine: _WorkerMachine, split: Sequence[int]) -> float:
        if self._site.one_machine or machine.saturation.spans_nodes:
            return machine.at(sum(split))
        first, *others = split  # of which all are alike
        return self._node(machine, first) + len(others) * self._node(machine, split[-1])

    def _node(self, machine: _WorkerMachine, tasks: int) -> float:
        if not tasks:
            return 0.0
        growth = self._growth
        if tasks <= growth:  # a CPU of the measured machine's for each
            return tasks * machine.alone
        return growth * machine.at(tasks / growth)


def _by_cpus(measured: Measurements) -> dict[int, tuple[Point, ...]]:
    """The points of each number of CPUs; of a pipeline that uses one CPU only the least number."""
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
