"""repeat: several passes over the data."""

from dataclasses import dataclass
from itertools import count

import numpy as np

from csrun.data.flow import Chunks, Flow, Source
from csrun.data.indexed import Indexed, Order
from csrun.data.input_operators import StageClock
from csrun.data.samples import Rows


def repeated(source: Source, passes: int | None) -> Source:
    """Repeat a source; endless if None."""
    if isinstance(source, Indexed):
        return source.ordered(RepeatOrder(source.outer_order, passes))
    return RepeatFlow(source, passes)


@dataclass(frozen=True)
class RepeatOrder:
    """Order of `count` passes over `below`; endless if None."""

    below: Order
    count: int | None

    @property
    def length(self) -> int | None:
        """Elements per pass."""
        below = self.below.length
        return None if below is None or self.count is None else below * self.count

    def at(self, epoch: int, positions: Rows) -> Rows:
        """Return the elements at these positions of a pass."""
        below = self.below.length
        if not below or not positions.size:
            return self.below.at(epoch, positions)
        earlier = epoch * (self.count or 0)
        first = int(positions[0]) // below
        within = positions - first * below
        if within.min() >= 0 and within.max() < below:  # the usual case: a batch within one pass
            return self.below.at(earlier + first, within)
        passes, within = np.divmod(positions, below)
        found = np.empty_like(positions)
        for number in sorted(set(passes.tolist())):  # np.unique imports numpy.ma, 30 ms
            chosen = passes == number
            found[chosen] = self.below.at(earlier + number, within[chosen])
        return found


@dataclass(frozen=True)
class RepeatFlow:
    """Stream of `count` passes; endless if None."""

    below: Flow
    passes: int | None

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open all passes."""
        first = epoch * (self.passes or 0)
        for number in range(self.passes) if self.passes is not None else count():
            empty = True
            for chunk in self.below.open(first + number, clock):
                empty = False
                yield chunk
            # Without end, an empty stream would be opened again and again for nothing.
            if empty:
                return
