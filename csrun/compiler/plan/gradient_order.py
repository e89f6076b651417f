"""Order of a step's gradients in weight streaming: which are computed last.

Reverse mode ends with those of the group that the next step begins with: it would wait for their
update. The gradients of the visit before are read by nobody but MemoryX. They are made after the
first group's, which is updated meanwhile, and are updated themselves while the next step begins.
"""

from collections.abc import Sequence
from itertools import chain

from csrun.compiler.graph.graph import GRADIENT
from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.plan.visits import UseOf, runs_of


def first_group_before_last(kernels: Sequence[Kernel], use_of: UseOf) -> Sequence[Kernel]:
    """The kernels of a step in that order, if the last visits allow for it, or as they are.

    They do where the visit before the last one has gradients that kernels of their own make. What
    another kernel makes next to something else, as a bias's, stays: then the group's gradients are
    of two visits, and have a place of their own in the window.
    """
    runs = runs_of(kernels, use_of)
    if len(runs) < 3 or _groups(runs[0], use_of) != _groups(runs[-1], use_of):
        return kernels
    *earlier, before, last = runs
    late = [kernel for kernel in before if _makes_gradients_alone(kernel)]
    others = [kernel for kernel in before if not _makes_gradients_alone(kernel)]
    if not (late and others):
        return kernels
    # What late kernels read must still be there when they run after the others.
    if before[0].phase is not Phase.BACKWARD or _is_changed(before, last):
        return kernels
    return [*chain.from_iterable(earlier), *others, *last, *late]


def _groups(run: Sequence[Kernel], use_of: UseOf) -> frozenset[int]:
    return frozenset[int]().union(*(use_of(kernel).groups for kernel in run))


def _makes_gradients_alone(kernel: Kernel) -> bool:
    names = [array.name for array in kernel.writes]
    return bool(names) and all(name.startswith(GRADIENT) for name in names)


def _is_changed(before: Sequence[Kernel], last: Sequence[Kernel]) -> bool:
    """Return whether others write what late kernels have read in their old places."""
    read: set[str] = set()
    for kernel in before:
        if _makes_gradients_alone(kernel):
            read.update(array.name for array in kernel.reads)
        elif read.intersection(array.name for array in kernel.writes):
            return True
    return any(array.name in read for kernel in last for array in kernel.writes)
