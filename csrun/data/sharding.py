"""Which part of the data this task streams."""

from collections.abc import Iterator
from contextlib import contextmanager

from csrun.context import current

Shard = tuple[int, int]  # index, count

_given: list[Shard] = []


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
