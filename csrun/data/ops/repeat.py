"""repeat: passes over the data, one after the other."""

from dataclasses import dataclass
from itertools import count

import numpy as np

from csrun.data.flow import Chunks, Flow, Source
from csrun.data.indexed import Indexed, Order
from csrun.data.operators import StageClock
from csrun.data.samples import Rows


def repeated(source: Source, passes: int | None) -> Source:
    """So many passes over a source; endless when None."""
    if isinstance(source, Indexed):
        return source.ordered(RepeatOrder(source.outer_order, passes))
    return RepeatFlow(source, passes)


@dataclass(frozen=True)
class RepeatOrder:
    """`count` passes over `below`, one after the other; endless when None."""

    below: Order
    count: int | None

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        below = self.below.length
        return None if below is None or self.count is None else below * self.count

    def at(self, epoch: int, positions: Rows) -> Rows:
        """The elements at these positions of pass `epoch`."""
        below = self.below.length
        if not below or not positions.size:
            return self.below.at(epoch, positions)
        earlier = epoch * (self.count or 0)
        first = int(positions[0]) // below
        within = positions - first * below
        if within.min() >= 0 and within.max() < below:  # nearly always: a batch of one pass
            return self.below.at(earlier + first, within)
        passes, within = np.divmod(positions, below)
        found = np.empty_like(positions)
        for number in sorted(set(passes.tolist())):  # np.unique would import numpy.ma, 30 ms
            chosen = passes == number
            found[chosen] = self.below.at(earlier + number, within[chosen])
        return found


@dataclass(frozen=True)
class RepeatFlow:
    """So many passes, one after the other; endless when None."""

    below: Flow
    passes: int | None

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The elements of all of them."""
        first = epoch * (self.passes or 0)
        for number in range(self.passes) if self.passes is not None else count():
            empty = True
            for chunk in self.below.open(first + number, clock):
                empty = False
                yield chunk
            if empty:
                return
