"""shard: every so-many-th element."""

from dataclasses import dataclass

from csrun.data.flow import Chunks, Flow, Source
from csrun.data.indexed import Indexed, Order
from csrun.data.operators import StageClock
from csrun.data.samples import Rows


def sharded(source: Source, count: int, index: int) -> Source:
    """Every `count`-th element of a source, from `index` on."""
    if isinstance(source, Indexed):
        return source.ordered(ShardOrder(source.outer_order, count, index))
    return ShardFlow(source, count, index)


@dataclass(frozen=True)
class ShardOrder:
    """Every `count`-th element of `below`, from `index` on."""

    below: Order
    count: int
    index: int

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        below = self.below.length
        return None if below is None else len(range(self.index, below, self.count))

    def numbers(self, epoch: int, start: int, stop: int) -> Rows:
        """The elements at positions start..stop-1 of pass `epoch`."""
        first, last = start * self.count + self.index, (stop - 1) * self.count + self.index
        return self.below.numbers(epoch, first, last + 1)[:: self.count]


@dataclass(frozen=True)
class ShardFlow:
    """Every `count`-th element, from `index` on."""

    below: Flow
    count: int
    index: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Those elements."""
        skip = self.index
        for chunk in self.below.open(epoch, clock):
            yield chunk[skip :: self.count]
            skip = (skip - len(chunk)) % self.count
