"""shard: every `count`-th element."""

from dataclasses import dataclass

from csrun.data.flow import Chunks, Flow, Source
from csrun.data.indexed import Indexed, Order
from csrun.data.input_operators import StageClock
from csrun.data.samples import Rows


def sharded(source: Source, count: int, index: int) -> Source:
    """Keep every `count`-th element of a source, from `index` on."""
    if isinstance(source, Indexed):
        return source.ordered(ShardOrder(source.outer_order, count, index))
    return ShardFlow(source, count, index)


@dataclass(frozen=True)
class ShardOrder:
    """Order of every `count`-th element of `below`, from `index` on."""

    below: Order
    count: int
    index: int

    @property
    def length(self) -> int | None:
        """Elements per pass."""
        below = self.below.length
        return None if below is None else len(range(self.index, below, self.count))

    def at(self, epoch: int, positions: Rows) -> Rows:
        """Return the elements at these positions of a pass."""
        return self.below.at(epoch, positions * self.count + self.index)


@dataclass(frozen=True)
class ShardFlow:
    """Stream of every `count`-th element, from `index` on."""

    below: Flow
    count: int
    index: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open a pass."""
        skip = self.index
        for chunk in self.below.open(epoch, clock):
            yield chunk[skip :: self.count]
            skip = (skip - len(chunk)) % self.count
