"""The smallest layout that feeds a target, or the best that a site has."""

from itertools import chain

import msgspec

from csrun.advice.analysis.scaling import Scaling, ScalingLimit, StreamerLayout
from csrun.runtime import input_use
from csrun.site import streaming_single_task_nodes

ALIKE = 0.05  # of two layouts that deliver the same but for this, the smaller one is the better


class FeedTarget(msgspec.Struct, frozen=True):
    """The rate to feed, where it comes from, and the margin above it that a layout has to have.

    spread: how much a measured rate varies from step to step; 0 when it is not known.
    """

    samples_per_s: float
    source: str
    margin: float = input_use.MARGIN - 1  # a run that waits asks for as many streamers
    spread: float = 0.0

    @property
    def wanted(self) -> float:
        """With the margin."""
        return self.samples_per_s * (1 + self.margin)


class Solution(msgspec.Struct, frozen=True):
    """What to run. limit: what keeps the target, with its margin, out of reach; None when it is not

    missing: by what factor it falls short, 1 when it does not. by_nodes: the best layouts of fewer
    and more nodes. most: the layout that delivers most of all on this site; of layouts that deliver
    about as much, a smaller one is recommended.
    """

    layout: StreamerLayout
    limit: ScalingLimit | None
    missing: float
    by_nodes: tuple[StreamerLayout, ...]
    most: StreamerLayout


def solve(scaling: Scaling, target: FeedTarget, streaming: bool, nodes: int) -> Solution:
    """The fewest nodes, then tasks a node, then CPUs a task, that deliver the target.

    A target out of reach gets the smallest of the best layouts.

    Raises: ValueError for fewer nodes than a job needs
    """
    fewest = least_nodes(streaming)
    if nodes < fewest:
        raise ValueError(f"at least {fewest} nodes, got {nodes}")
    possible = {count: list(scaling.layouts(count)) for count in range(fewest, nodes + 1)}
    best = {count: _smaller_of_alike(layouts) for count, layouts in possible.items() if layouts}
    found = _smallest(scaling, target.wanted, best)
    layout = found or _smaller_of_alike(list(best.values()))
    chosen = sorted({*_powers(fewest, nodes), layout.nodes} & set(best))
    return Solution(
        layout=layout,
        limit=None if found else scaling.limit(layout.cpus_per_task),
        missing=max(1.0, target.wanted / layout.samples_per_s),
        by_nodes=tuple(layout if count == layout.nodes else best[count] for count in chosen),
        most=max(chain(*possible.values()), key=lambda each: each.samples_per_s),
    )


def least_nodes(streaming: bool) -> int:
    """Nodes of the smallest job."""
    return streaming_single_task_nodes() + 1 if streaming else 1


def _smallest(
    scaling: Scaling, wanted: float, best: dict[int, StreamerLayout]
) -> StreamerLayout | None:
    for nodes, highest in best.items():
        if highest.samples_per_s * (1 + ALIKE) < wanted:
            continue
        for layout in scaling.layouts(nodes):
            if layout.samples_per_s >= wanted:
                return layout
    return None


def _smaller_of_alike(layouts: list[StreamerLayout]) -> StreamerLayout:
    highest = max(layout.samples_per_s for layout in layouts)
    return next(each for each in layouts if each.samples_per_s * (1 + ALIKE) >= highest)


def _powers(fewest: int, most: int) -> list[int]:
    """A few numbers of nodes, each about twice the one before."""
    counts, count = [fewest], 2
    while count < most:
        counts += [count] if count > fewest else []
        count *= 2
    return [*counts, most]
