"""Tree of SwarmX tasks between the wafers of several CS systems and MemoryX on other machines.

A task has at most FAN_OUT children. Its first child is the SwarmX task below it, whose wafers
precede its own. Adding the gradients of the children in order is therefore the same sequence of
additions as on one machine, with the same bits. No tree of this fan-out has fewer tasks.
"""

from itertools import pairwise

FAN_OUT = 4


def wafers_below(systems: int) -> list[range]:
    """Return the indices of the systems whose wafers are children of each task, MemoryX's child
    first.

    One system needs no SwarmX task.
    """
    if systems == 1:
        return []
    starts = [0, *range(FAN_OUT, systems, FAN_OUT - 1)]
    return [range(first, end) for first, end in pairwise([*starts, systems])][::-1]


def swarmx_tasks(systems: int) -> int:
    """Return the number of SwarmX tasks for this many systems."""
    return len(wafers_below(systems))
