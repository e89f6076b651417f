"""Smallest layout that reaches a target, or the best of a site."""

from itertools import chain

import msgspec

from csrun.advice.analysis.scaling import Scaling, ScalingLimit, StreamerLayout
from csrun.runtime import input_bound
from csrun.site import streaming_single_task_nodes

EQUAL_WITHIN = 0.05  # layouts whose rates differ by less are equal: the smaller one is chosen


class FeedTarget(msgspec.Struct, frozen=True):
    """Target rate, its source, and the margin that a layout needs above it.

    spread: of a measured rate over steps; 0 if unknown.
    """

    samples_per_s: float
    source: str
    margin: float = input_bound.MARGIN - 1  # as for the streamers that a waiting run asks for
    spread: float = 0.0

    @property
    def wanted(self) -> float:
        """Target with its margin."""
        return self.samples_per_s * (1 + self.margin)


class Solution(msgspec.Struct, frozen=True):
    """Recommended layout. limit: why the target with its margin is not reached; None if it is.

    missing: factor by which it falls short, 1 if it does not. by_nodes: best layouts of fewer and
    more nodes. most: layout with the highest rate on this site; a smaller one of about the same
    rate is recommended.
    """

    layout: StreamerLayout
    limit: ScalingLimit | None
    missing: float
    by_nodes: tuple[StreamerLayout, ...]
    most: StreamerLayout


def solve(scaling: Scaling, target: FeedTarget, streaming: bool, nodes: int) -> Solution:
    """Find the fewest nodes, then tasks per node, then CPUs per task, that reach the target.

    If the target is out of reach, return the smallest of the best layouts.

    Raises: ValueError for fewer nodes than a job needs
    """
    fewest = least_nodes(streaming)
    if nodes < fewest:
        raise ValueError(f"at least {fewest} nodes, got {nodes}")
    possible = {count: list(scaling.layouts(count)) for count in range(fewest, nodes + 1)}
    best = {count: _smallest_of_fastest(layouts) for count, layouts in possible.items() if layouts}
    found = _smallest(scaling, target.wanted, best)
    layout = found or _smallest_of_fastest(list(best.values()))
    chosen = sorted({*_powers(fewest, nodes), layout.nodes} & set(best))
    return Solution(
        layout=layout,
        limit=None if found else scaling.limit(layout.cpus_per_task),
        missing=max(1.0, target.wanted / layout.samples_per_s),
        by_nodes=tuple(layout if count == layout.nodes else best[count] for count in chosen),
        most=max(chain(*possible.values()), key=lambda each: each.samples_per_s),
    )


def least_nodes(streaming: bool) -> int:
    """Number of nodes of the smallest job."""
    return streaming_single_task_nodes() + 1 if streaming else 1


def _smallest(
    scaling: Scaling, wanted: float, best: dict[int, StreamerLayout]
) -> StreamerLayout | None:
    for nodes, highest in best.items():
        if highest.samples_per_s * (1 + EQUAL_WITHIN) < wanted:
            continue
        for layout in scaling.layouts(nodes):
            if layout.samples_per_s >= wanted:
                return layout
    return None


def _smallest_of_fastest(layouts: list[StreamerLayout]) -> StreamerLayout:
    highest = max(layout.samples_per_s for layout in layouts)
    return next(each for each in layouts if each.samples_per_s * (1 + EQUAL_WITHIN) >= highest)


def _powers(fewest: int, most: int) -> list[int]:
    """Return a few numbers of nodes, each about twice the previous."""
    counts, count = [fewest], 2
    while count < most:
        counts += [count] if count > fewest else []
        count *= 2
    return [*counts, most]
