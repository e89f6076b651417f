"""The tree of SwarmX tasks between the wafers of several CS systems and MemoryX on other machines.

Of the FAN_OUT children of a task the first is the task below it, whose wafers come before its own.
So a sum of its children's, in their order, is the chain of additions that one machine makes, to the
last bit; and no tree of this fan-out has fewer tasks.
"""

from itertools import pairwise

FAN_OUT = 4


def wafers_below(systems: int) -> list[range]:
    """The wafers right below each task, by the numbers of their systems; MemoryX's own child first.

    One system needs no task.
    """
    if systems == 1:
        return []
    starts = [0, *range(FAN_OUT, systems, FAN_OUT - 1)]
    return [range(first, end) for first, end in pairwise([*starts, systems])][::-1]


def swarmx_tasks(systems: int) -> int:
    """Number of tasks of the tree for so many systems."""
    return len(wafers_below(systems))
