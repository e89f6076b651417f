"""Floor plans of random networks, compared with their area bound, random orders and a limit."""

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from result import Result

from csrun.compiler.plan.floor_plan import Demands, Wire, arrange, usable_part, wire_length
from csrun.site import load as load_site

PART = usable_part(load_site("local").systems[0])
LAYERS = (2, 5, 10, 20, 40, 60)
NETWORKS = 50
MEMORY_SHARE = 0.8  # of the PEs, at most, are taken by memory alone
LEAST_RATIO = 0.9
LIMIT_S = 5.0


@dataclass(frozen=True)
class Chain:
    """Layers that each feed the next; FLOPs and memory over four orders of magnitude."""

    flops: list[int]
    memory_pes: list[int]

    @property
    def demands(self) -> Demands:
        return Demands(self.flops, self.memory_pes)

    def wires(self, order: list[int]) -> list[Wire]:
        """Its wires when its layers are placed in another order."""
        place_of = {layer: place for place, layer in enumerate(order)}
        return [Wire(place_of[a], place_of[b]) for a, b in pairwise(range(len(order)))]

    def in_order(self, order: list[int]) -> "Chain":
        return Chain([self.flops[i] for i in order], [self.memory_pes[i] for i in order])


@dataclass(frozen=True)
class Measured:
    """One network's plan. rate_ratio: its rate over the bound's; wires in columns and rows."""

    rate_ratio: float
    wires: float
    wires_of_random_order: float
    seconds: float


def networks(layers: int) -> Iterator[Chain]:
    """The seeded workload."""
    seeded = random.Random(layers)
    for _ in range(NETWORKS):
        flops = [int(10 ** seeded.uniform(6, 10)) for _ in range(layers)]
        sizes = [10 ** seeded.uniform(0, 4) for _ in range(layers)]
        pes = seeded.uniform(0, MEMORY_SHARE) * PART.pes / sum(sizes)
        yield Chain(flops, [max(1, int(size * pes)) for size in sizes])


def measure(chain: Chain, order: list[int]) -> Measured:
    """The plan of a network, and that of its layers in another order."""
    wires = chain.wires(list(range(len(order))))
    started_s = perf_counter()
    plan = arrange(chain.demands, wires, PART)
    seconds = perf_counter() - started_s
    rate = min(r.pes / flops for r, flops in zip(plan, chain.flops, strict=True))
    ratio = rate / chain.demands.rate_bound(PART.pes)
    others = chain.wires(order)
    other = wire_length(arrange(chain.in_order(order).demands, others, PART), others)
    return Measured(ratio, wire_length(plan, wires), other, seconds)


def placements(layers: int) -> list[Result]:
    """The slowest rate and the longest time of the networks, and the median of the wires."""
    seeded = random.Random(layers)
    found = [measure(chain, seeded.sample(range(layers), layers)) for chain in networks(layers)]
    rate, seconds = min(m.rate_ratio for m in found), max(m.seconds for m in found)
    wires = statistics.median(m.wires for m in found)
    of_random = statistics.median(m.wires_of_random_order for m in found)
    workload = f"{NETWORKS} networks of {layers} layers"
    return [
        Result("placement", workload, "least rate", "of the bound", rate, "the bound of the area",
               rate, 1, at_least=LEAST_RATIO),
        Result("placement", workload, "wires", "columns and rows", wires, "random order",
               wires / of_random, NETWORKS),
        Result("placement", workload, "longest time", "s", seconds, f"the limit, {LIMIT_S:g} s",
               seconds / LIMIT_S, 1, at_most=1.0),
    ]  # fmt: skip


if __name__ == "__main__":
    for layers in LAYERS:
        for result in placements(layers):
            result.print()
