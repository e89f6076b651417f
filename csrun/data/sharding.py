"""Shard of the data that this task streams, and the seed shared by all tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from csrun.context import current
from csrun.data.errors import DataError

Shard = tuple[int, int]  # index, count

NO_SEED = 1  # of a run without a seed, as the estimator's

_given: list[Shard] = []
_seeds: list[int] = []


class Sharding(StrEnum):
    """Split of a data set among the streamers.

    BATCH: streamer i of N makes the batches i, i + N, i + 2N, … of one common sequence. FILE and
    USER: every streamer has its own data set, and batches are taken from them in rotation, so the
    training depends on the number of streamers.
    """

    BATCH = "batch"
    FILE = "file"
    USER = "user"


@dataclass(frozen=True)
class Shards:
    """Shards of a chain: the kind of sharding, and each (index, count)."""

    sharding: Sharding = Sharding.BATCH
    taken: tuple[Shard, ...] = ()

    def with_shard(self, sharding: Sharding, shard: Shard) -> "Shards":
        """Add a shard."""
        by_file = Sharding.FILE in (sharding, self.sharding)
        return Shards(Sharding.FILE if by_file else sharding, (*self.taken, shard))

    def local(self, start: int, stride: int) -> tuple[int, int]:
        """Convert batches start, start + stride, … to those of the streamer's own data set.

        Raises: DataError if the chain is sharded for other streamers than the run has
        """
        if self.sharding is Sharding.BATCH:
            return start, stride
        mine = (start % stride, stride)
        if stride > 1 and mine not in self.taken:
            index, count = self.taken[-1]
            raise DataError(
                f"shard({count}, {index}) in input_fn does not match streamer {mine[0]} of "
                f"{stride}: "
                "samples would be repeated or missing; use "
                "index, count = csrun.data.shard_info()"
            )
        return start // stride, 1


UNSHARDED = Shards()


def shard_info() -> Shard:
    """Return this task's shard of the data, (index, count).

    count is the number of streamers, index the rank of this one among them. A task that does not
    stream (as the chief, which reads shapes) has index 0. Without a launcher it is (0, 1).
    """
    if _given:
        return _given[-1]
    context = current()
    if context is None or context.mode is None:
        return 0, 1
    ranks = context.streamers
    return ranks.index(context.rank) if context.rank in ranks else 0, len(ranks)


@contextmanager
def sharded_as(index: int, count: int) -> Iterator[None]:
    """Set another shard inside the block, to measure a pipeline outside of a job."""
    _given.append((index, count))
    try:
        yield
    finally:
        _given.pop()


def run_seed() -> int:
    """Return the seed of the run, used by shuffles without a seed."""
    return _seeds[-1] if _seeds else NO_SEED


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set the run's seed inside the block; all tasks have the same seed, so they draw one order."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()
