"""Which part of the data this task streams, and the seed that it shares with the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from csrun.context import current
from csrun.data.errors import DataError

Shard = tuple[int, int]  # index, count

NO_SEED = 1  # of a run that says none, as the estimator's

_given: list[Shard] = []
_seeds: list[int] = []


class Sharding(StrEnum):
    """How a data set is split among the streamers.

    BATCH: streamer i of N takes the batches i, i + N, i + 2N, … of one and the same sequence. FILE
    and USER: every streamer has a data set of its own, whose batches are taken in turn, so that
    what is trained depends on the number of streamers.
    """

    BATCH = "batch"
    FILE = "file"
    USER = "user"


@dataclass(frozen=True)
class Shards:
    """The shards of a chain: by whom it was sharded, and each time as which (index, count)."""

    sharding: Sharding = Sharding.BATCH
    taken: tuple[Shard, ...] = ()

    def and_by(self, sharding: Sharding, shard: Shard) -> "Shards":
        """Sharded once more."""
        by_file = Sharding.FILE in (sharding, self.sharding)
        return Shards(Sharding.FILE if by_file else sharding, (*self.taken, shard))

    def local(self, start: int, stride: int) -> tuple[int, int]:
        """Where a streamer of batches start, start + stride, … reads in its own data set.

        Raises: DataError when the chain was sharded otherwise than the run's streamers are
        """
        if self.sharding is Sharding.BATCH:
            return start, stride
        mine = (start % stride, stride)
        if stride > 1 and mine not in self.taken:
            index, count = self.taken[-1]
            raise DataError(
                f"shard({count}, {index}) in input_fn turns sharding by batch off, and this is "
                f"streamer {mine[0]} of {stride}: streamers would give the same samples, or leave "
                "some out; take index and count from csrun.data.shard_info()"
            )
        return start // stride, 1


UNSHARDED = Shards()


def shard_info() -> Shard:
    """This task's shard of the data: (index, count), in any task of a job.

    count is the number of streamers, and index this one's place among them. A task that streams
    nothing (the chief that looks at shapes) has index 0. Without a launcher it is (0, 1).
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
    """Be another shard for a while: for measuring a pipeline outside of a job."""
    _given.append((index, count))
    try:
        yield
    finally:
        _given.pop()


def run_seed() -> int:
    """The seed of the run that this task is in: for what shuffles without one of its own."""
    return _seeds[-1] if _seeds else NO_SEED


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Be in a run of this seed. All its tasks have the same, and so draw one order."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()
