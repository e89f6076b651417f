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

    def numbers(self, epoch: int, start: int, stop: int) -> Rows:
        """The elements at positions start..stop-1 of pass `epoch`."""
        below = self.below.length
        if not below:
            return self.below.numbers(epoch, start, stop)
        earlier = epoch * (self.count or 0)
        passes = range(start // below, -(-stop // below))
        parts = [
            self.below.numbers(earlier + p, max(start - p * below, 0), min(stop - p * below, below))
            for p in passes
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


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
