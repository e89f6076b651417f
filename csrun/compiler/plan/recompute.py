"""Recomputation: the forward pass of a segment runs again before its backward pass.

In between, the segment's activations are not kept, except those that other segments read. The same
kernels run in another order, so the bits do not change; dropout masks are drawn from counters, so
they are equal. Values that the backward pass does not need are not recomputed.

A segment is a scope of nested layers, or several consecutive ones. Large segments leave little
memory in use between them, but need more while they are computed. All such cuts are tried, and the
one with the smallest memory is chosen.

Source: Chen et al. 2016, Training deep nets with sublinear memory cost, section 4
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import msgspec

from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.plan.memory_plan import Lifetime, place
from csrun.compiler.plan.placement import homes_of
from csrun.compiler.plan.store_layout import Layout, loads_of
from csrun.compiler.plan.visits import Function
from csrun.executable import GRADIENT, INPUT, Visit

DEEPEST = 4  # nesting levels of scopes at which a model is cut


@dataclass(frozen=True)
class Segment:
    """Consecutive visits of the forward pass, by position, and their scopes."""

    name: str
    visits: range


def cuts_of(layout: Layout) -> Iterator[tuple[Segment, ...]]:
    """Yield cuts of the forward pass: by scopes of each depth, one or several of them per segment.

    The last segment is excluded, because its backward pass follows immediately.
    """
    forward = [f for f in layout.functions if f.kernels[0].phase is Phase.FORWARD]
    paths = [_path(layout, function) for function in forward]
    seen = set()
    for depth in range(1, DEEPEST + 1):
        scopes = []
        for path, numbers in groupby(range(len(forward)), key=lambda n: paths[n][:depth]):
            found = list(numbers)
            scopes.append(Segment("/".join(path), range(found[0], found[-1] + 1)))
        together = 1
        while together < len(scopes):
            cut = tuple(
                _joined(scopes[at : at + together]) for at in range(0, len(scopes), together)
            )[:-1]
            if cut not in seen:
                seen.add(cut)
                yield cut
            together *= 2


def _path(layout: Layout, function: Function) -> tuple[str, ...]:
    """Return the scopes of a visit's first layer."""
    groups = function.visit.groups
    layer = layout.groups[groups[0]].layers[0] if groups else function.kernels[0].layer
    return tuple(layer.split("/"))


def _joined(segments: Sequence[Segment]) -> Segment:
    first, last = segments[0], segments[-1]
    name = first.name if first == last else f"{first.name} to {last.name}"
    return Segment(name, range(first.visits.start, last.visits.stop))


def with_recomputation(
    layout: Layout, micro_batches: int, alive_of: Callable[[Layout], list[Lifetime]]
) -> Layout | None:
    """Return the layout with the cut that takes the least memory; None if no segment can be
    recomputed.

    alive_of: function from a layout to its buffers.
    """
    found = (recompute(layout, cut) for cut in cuts_of(layout))
    fitting = [each for each in found if each.recomputed]
    if not fitting:
        return None
    best = min(fitting, key=lambda each: place(alive_of(each), 0)[1])
    return _counted(best, layout, micro_batches)


def recompute(layout: Layout, cut: Sequence[Segment]) -> Layout:
    """Return the layout with those segments of a cut recomputed that can be."""
    whole = _with(layout, cut)
    if _is_same(layout, whole):
        return whole
    found: list[Segment] = []
    for segment in cut:
        if _is_same(layout, _with(layout, [*found, segment])):
            found.append(segment)
    return _with(layout, found)


def _with(layout: Layout, segments: Sequence[Segment]) -> Layout:
    functions = layout.functions
    group_of = {name: layer.group for layer in layout.layers for name in layer.parameters}
    again: defaultdict[int, list[Function]] = defaultdict(list)
    dropped: set[str] = set()
    made: list[str] = []
    for segment in segments:
        inner = _inner(functions, segment)
        at = _needed_at(functions, segment, inner)
        kernels = _needed(functions, segment, inner, at)
        if not kernels or _writes_gradients(kernels):
            continue
        made.append(segment.name)
        dropped |= inner
        dropped.update(array.name for k in chain(*kernels.values()) for array in k.scratch)
        again[at][:0] = [
            Function(_visit(functions[number].visit, own, group_of), tuple(own))
            for number, own in kernels.items()
        ]
    found = [f for at, function in enumerate(functions) for f in (*again[at], function)]
    return replace(
        layout, functions=tuple(found), recomputed=tuple(made), dropped=frozenset(dropped)
    )


def _inner(functions: Sequence[Function], segment: Segment) -> set[str]:
    """Return the arrays that a segment computes and no other part of the forward pass uses."""
    inner, outer = set[str](), set[str]()
    for number, function in enumerate(functions):
        for kernel in function.kernels:
            if number in segment.visits:
                inner.update(array.name for array in kernel.writes)
            elif kernel.phase is Phase.FORWARD:
                outer.update(array.name for array in (*kernel.reads, *kernel.writes))
    return inner - outer


def _needed_at(functions: Sequence[Function], segment: Segment, inner: set[str]) -> int:
    """Return the first visit of the backward pass that uses a segment's values, or updates them."""
    own = {group for number in segment.visits for group in functions[number].visit.groups}
    for number, function in enumerate(functions):
        if function.kernels[0].phase is Phase.FORWARD:
            continue
        touched = {a.name for k in function.kernels for a in (*k.reads, *k.writes)}
        if touched & inner or own.intersection(function.visit.completes):
            return number
    return len(functions)


def _needed(
    functions: Sequence[Function], segment: Segment, inner: set[str], at: int
) -> dict[int, list[Kernel]]:
    """Return the kernels of a segment, by visit, whose results later visits read."""
    wanted = {a.name for f in functions[at:] for k in f.kernels for a in k.reads} & inner
    found: dict[int, list[Kernel]] = {}
    for number in reversed(segment.visits):
        for kernel in reversed(functions[number].kernels):
            if wanted.isdisjoint(array.name for array in kernel.writes):
                continue
            wanted.update({array.name for array in kernel.reads} & inner)
            found.setdefault(number, []).insert(0, kernel)
    return dict(sorted(found.items()))


def _writes_gradients(kernels: dict[int, list[Kernel]]) -> bool:
    """Return whether they write to gradients, as kernels of a state's next value do."""
    written = (array.name for kernel in chain(*kernels.values()) for array in kernel.writes)
    return any(name.startswith(GRADIENT) for name in written)


def _visit(visit: Visit, kernels: Sequence[Kernel], group_of: dict[str, int]) -> Visit:
    groups = {group_of[name] for kernel in kernels for name in kernel.parameters}
    return Visit(f"{visit.function}_recomputed", tuple(sorted(groups)))


def _is_same(layout: Layout, other: Layout) -> bool:
    """Return whether each kernel reads the results of the same kernels in both orders.

    A weight is read before its update. A value that a kernel has overwritten, in the segment or
    after it, cannot be recomputed from.
    """
    first: dict[str, int] = {}
    for kernel in layout.kernels:
        for array in kernel.writes:
            first.setdefault(array.name, id(kernel))
    found = {id(kernel): seen for kernel, seen in _seen(layout.kernels, first)}
    if any(found[id(kernel)] != seen for kernel, seen in _seen(other.kernels, first)):
        return False
    updated: set[int] = set()
    for function in other.functions:
        # A forward pass after the update would use the new weights.
        if updated.intersection(function.visit.groups):
            return False
        updated.update(function.visit.completes)
    return True


def _seen(
    kernels: Sequence[Kernel], first: dict[str, int]
) -> Iterator[tuple[Kernel, tuple[int, ...]]]:
    """Return each kernel with the contents of its arrays, as numbers for the kernels that wrote
    them.
    """
    state: dict[str, int] = {}
    for kernel in kernels:
        names = [a.name for a in kernel.reads if not (a.is_weight or a.name.startswith(INPUT))]
        names += [a.name for a in kernel.writes if first[a.name] != id(kernel)]
        yield kernel, tuple(state[name] for name in names)
        for name in dict.fromkeys(array.name for array in kernel.writes):
            before = 0 if first[name] == id(kernel) else state[name]
            state[name] = hash((before, id(kernel)))


def _counted(layout: Layout, before: Layout, micro_batches: int) -> Layout:
    """Add the layers' work, and the number of loads of their weights."""
    loads = loads_of(micro_batches * [function.visit for function in layout.functions])
    layer_of = {name: layer.name for layer in layout.layers for name in layer.parameters}
    first = next(iter(layer_of.values()), "")
    homes = homes_of(before.kernels, layer_of, first)
    home_of = {id(kernel): home for kernel, home in zip(before.kernels, homes, strict=True)}
    flops = Counter[str]()
    times = Counter(map(id, layout.kernels))
    for kernel in before.kernels:
        flops[home_of[id(kernel)]] += (times[id(kernel)] - 1) * kernel.flops
    layers = tuple(
        msgspec.structs.replace(
            layer,
            backward_flops=layer.backward_flops + flops[layer.name],
            loads=loads[layer.group],
        )
        for layer in layout.layers
    )
    return replace(layout, layers=layers)
