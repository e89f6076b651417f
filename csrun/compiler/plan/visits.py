"""Visits: the kernels of a step split into functions that the wafer calls, in program order.

A function has consecutive kernels that use the weights, or write the gradients, of one group;
kernels without a group belong to the kernel before them. Forward and backward are separate
functions, so that a pipeline can schedule something between them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from csrun.compiler.graph.graph import LOSS
from csrun.compiler.kernels import Kernel
from csrun.executable import Visit


@dataclass(frozen=True)
class GroupUse:
    """Groups whose weights a kernel reads, and those whose gradients it writes."""

    weights: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()

    @property
    def groups(self) -> frozenset[int]:
        """All groups that the kernel uses."""
        return self.weights | self.gradients


UseOf = Callable[[Kernel], GroupUse]


@dataclass(frozen=True)
class Function:
    """One function of the program, and its contents."""

    visit: Visit
    kernels: tuple[Kernel, ...]


def functions_of(
    kernels: Sequence[Kernel], use_of: UseOf, trained: frozenset[int]
) -> tuple[Function, ...]:
    """Return the functions of a step; groups in `trained` are updated once their gradients are
    complete.

    A group is complete after the last visit that uses it, but not before the loss is computed.
    """
    runs = runs_of(kernels, use_of)
    uses = [[use_of(kernel) for kernel in run] for run in runs]
    groups = [_all(use.groups for use in own) for own in uses]
    loss = next((i for i, run in enumerate(runs) if any(map(_writes_loss, run))), 0)
    last = {group: number for number, own in enumerate(groups) for group in own}
    completes: dict[int, list[int]] = {}
    for group in sorted(trained & last.keys(), reverse=True):
        completes.setdefault(max(last[group], loss), []).append(group)
    names = _names([(run[0].phase, own) for run, own in zip(runs, groups, strict=True)])
    return tuple(
        Function(
            Visit(
                names[number],
                _all(use.weights for use in uses[number]),
                _all(use.gradients for use in uses[number]),
                tuple(completes.get(number, ())),
            ),
            tuple(run),
        )
        for number, run in enumerate(runs)
    )


def with_frees(functions: Sequence[Function], last_use: dict[str, int]) -> tuple[Visit, ...]:
    """Return the visits, each with the buffers that it frees.

    last_use: position, among all kernels of the step, of the last one that needs a buffer.
    """
    number_of = [n for n, function in enumerate(functions) for _ in function.kernels]
    freed: list[list[str]] = [[] for _ in functions]
    for name, place in last_use.items():
        if place < len(number_of):  # outputs for the host are never freed
            freed[number_of[place]].append(name)
    return tuple(
        msgspec.structs.replace(function.visit, frees=tuple(names))
        for function, names in zip(functions, freed, strict=True)
    )


def runs_of(kernels: Sequence[Kernel], use_of: UseOf) -> list[list[Kernel]]:
    """Return runs of kernels, each with the groups of one visit."""
    runs: list[list[Kernel]] = []
    held: frozenset[int] = frozenset()
    for kernel in kernels:
        groups = use_of(kernel).groups
        is_other = bool(groups and held and groups != held)
        if not runs or is_other or kernel.phase is not runs[-1][-1].phase:
            runs.append([])
            held = frozenset()
        runs[-1].append(kernel)
        held = held or groups
    return runs


def _all(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted(frozenset(chain.from_iterable(groups))))


def _writes_loss(kernel: Kernel) -> bool:
    return any(array.name == LOSS.name for array in kernel.writes)


def _names(calls: Sequence[tuple[str, tuple[int, ...]]]) -> list[str]:
    """Return names from phase and group, with a number after the first visit."""
    names, times = [], Counter[str]()
    for phase, groups in calls:
        name = "_".join([str(phase), *map(str, groups)])
        times[name] += 1
        names.append(f"{name}_again_{times[name]}" if times[name] > 1 else name)
    return names
