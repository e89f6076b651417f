"""Order of a step's last gradients in weight streaming.

Reverse mode ends with the gradients of the group that the next step begins with, which would wait
for its update. The gradients of the visit before are only read by MemoryX. They are therefore
computed after the first group's, which is updated meanwhile; they are updated themselves while the
next step begins.
"""

from collections.abc import Sequence
from itertools import chain

from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.plan.visits import UseOf, runs_of
from csrun.executable import GRADIENT


def first_group_before_last(kernels: Sequence[Kernel], use_of: UseOf) -> Sequence[Kernel]:
    """Return the kernels of a step in that order if its last visits allow it, else unchanged.

    They do if separate kernels compute gradients of the second last visit. Gradients that a kernel
    computes with something else, such as a bias's, stay: the group's gradients then belong to two
    visits, and have a separate place in the window.
    """
    runs = runs_of(kernels, use_of)
    if len(runs) < 3 or _groups(runs[0], use_of) != _groups(runs[-1], use_of):
        return kernels
    *earlier, before, last = runs
    late = [kernel for kernel in before if _makes_gradients_alone(kernel)]
    others = [kernel for kernel in before if not _makes_gradients_alone(kernel)]
    if not (late and others):
        return kernels
    # Inputs of late kernels must still be valid when they run after the others.
    if before[0].phase is not Phase.BACKWARD or _is_changed(before, last):
        return kernels
    return [*chain.from_iterable(earlier), *others, *last, *late]


def _groups(run: Sequence[Kernel], use_of: UseOf) -> frozenset[int]:
    return frozenset[int]().union(*(use_of(kernel).groups for kernel in run))


def _makes_gradients_alone(kernel: Kernel) -> bool:
    names = [array.name for array in kernel.writes]
    return bool(names) and all(name.startswith(GRADIENT) for name in names)


def _is_changed(before: Sequence[Kernel], last: Sequence[Kernel]) -> bool:
    """Return whether others overwrite what late kernels have read at their old positions."""
    read: set[str] = set()
    for kernel in before:
        if _makes_gradients_alone(kernel):
            read.update(array.name for array in kernel.reads)
        elif read.intersection(array.name for array in kernel.writes):
            return True
    return any(array.name in read for kernel in last for array in kernel.writes)
