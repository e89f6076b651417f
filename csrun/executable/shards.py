"""Assignment of groups to MemoryX tasks: a function of the plan and the number of tasks.

The flat regions of a store hold the groups one after the other. All are cut at the same groups into
one piece per task, such that the largest piece is minimal. A task's store has the layout of the
full store, but memory only for its own groups.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from csrun.base.errors import CsrunError
from csrun.executable.plan import Plan
from csrun.executable.stored_groups import Group

Own = Collection[int] | None  # indices of a task's groups; None for all


@dataclass(frozen=True)
class StoreShards:
    """Pieces of a store's flat regions, by their end offsets in bytes from the region's start.

    With more tasks than groups some pieces are empty.
    """

    ends: tuple[int, ...]

    @staticmethod
    def of(owner: Plan, servers: int) -> "StoreShards":
        """Return the pieces of a store with the layout of `owner`, for this number of tasks."""
        starts, end = piece_starts(owner)
        sizes = [after - start for start, after in pairwise((*starts, end))]
        lasts = accumulate(_even(sizes, servers))
        return StoreShards(tuple(starts[last] if last < len(starts) else end for last in lasts))

    @property
    def servers(self) -> int:
        """Number of tasks."""
        return len(self.ends)

    def server_of(self, group: Group) -> int:
        """Return the task, from 0, that stores a group of any program over the store.

        Raises: CsrunError for a group in the pieces of two tasks
        """
        server = min(bisect_right(self.ends, group.offset_bytes), self.servers - 1)
        if group.offset_bytes + group.nbytes > self.ends[server]:
            raise CsrunError(
                f"{', '.join(group.layers)}: one group here, several in the run's first program, "
                f"so {self.servers} MemoryX tasks cannot share them: train the same parameters, "
                "or set num_wgt_servers to 1"
            )
        return server

    def servers_of(self, plan: Plan) -> tuple[int, ...]:
        """The task of each group of a program."""
        return tuple(map(self.server_of, plan.groups))

    def own(self, plan: Plan, server: int) -> Own:
        """Return the groups of a program that a task stores."""
        if self.servers == 1:
            return None
        return tuple(g for g, its in enumerate(self.servers_of(plan)) if its == server)


def piece_starts(owner: Plan) -> tuple[list[int], int]:
    """Return the offsets of the pieces, and the end of the last one."""
    groups = sorted(owner.groups, key=lambda group: group.offset_bytes)
    # A tensor is drawn and stored in a checkpoint as one, so its shards stay together.
    inner = {p.offset_bytes for p in owner.parameters if p.part is not None and p.part.first > 0}
    starts = [g.offset_bytes for g in groups if g.offset_bytes not in inner]
    return starts, max((g.offset_bytes + g.nbytes for g in groups), default=0)


def groups_of_server(plan: Plan, own: Own) -> tuple[Group, ...]:
    """Return the groups that a task stores."""
    return plan.groups if own is None else tuple(plan.groups[index] for index in own)


def _even(sizes: Sequence[int], pieces: int) -> list[int]:
    """Split sizes into consecutive pieces with the smallest maximum sum; return their lengths."""
    whole = sum(sizes)
    # The number of pieces decreases with the maximum, so a binary search finds the smallest.
    most = bisect_left(
        range(whole + 1), True, lo=max(sizes, default=0), key=lambda m: _needed(sizes, m) <= pieces
    )
    counts, filled = [0] * pieces, 0
    piece = 0
    for number, size in enumerate(sizes):
        is_full = filled + size > most
        are_scarce = len(sizes) - number < pieces - piece  # leave one for each later piece
        if counts[piece] and (is_full or are_scarce):
            piece, filled = piece + 1, 0
        counts[piece] += 1
        filled += size
    return counts


def _needed(sizes: Sequence[int], most: int) -> int:
    """Return the number of pieces when none exceeds `most`."""
    pieces, filled = 1, 0
    for size in sizes:
        if filled + size > most:
            pieces, filled = pieces + 1, 0
        filled += size
    return pieces
