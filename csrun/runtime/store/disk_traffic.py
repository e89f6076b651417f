"""Bytes that a step moves between the disk and a store with part of its bytes in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

from csrun.base.mode import RunMode
from csrun.executable import Plan
from csrun.runtime.store.residency import Residency, spilled_gradients, state_of, weights_of


@dataclass(frozen=True)
class DiskTraffic:
    """Bytes that a step reads from the disk and writes to it."""

    read_bytes: int
    written_bytes: int


def disk_traffic(plan: Plan, memory_bytes: int) -> DiskTraffic:
    """Return the traffic of a step after the first one, whose optimizer state may be zero.

    memory_bytes: limit of the store's memory.

    The wafer reads a group's weights at each load, and an update finds those of the last one in
    memory. Each later micro-batch reads a sum of gradients and writes it again. An update that
    waits for the norm of all gradients reads them once more.
    """
    residency = Residency(plan, memory_bytes)

    def evicted(parts: Iterable[range]) -> int:
        return sum(len(each) for part in parts for each in residency.leaving(part))

    loads = {layer.group: layer.loads for layer in plan.layers}
    weights = {g.index: evicted([weights_of(plan, g)]) for g in plan.groups}
    read_bytes = sum(loads[group] * nbytes for group, nbytes in weights.items())
    if plan.run_mode is not RunMode.TRAIN:
        return DiskTraffic(read_bytes, 0)
    written_bytes = 0
    for group in (plan.groups[index] for index in plan.deliveries):
        state, sums = evicted(state_of(plan, group)), evicted(spilled_gradients(plan, group))
        later = plan.micro_batches - 1
        read_bytes += state - sums - weights[group.index] + (later + plan.measures) * sums
        written_bytes += state + later * sums
    return DiskTraffic(read_bytes, written_bytes)
