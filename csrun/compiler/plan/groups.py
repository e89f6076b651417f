"""Grouping of layers whose weights are sent together, from the order in which kernels use them.

While one group is computed, the next one is sent. Small consecutive layers therefore form a group,
up to a size, and a group that is small compared with the next one is merged into it: otherwise the
next one would have to be sent within the short computation of the small one. Groups end at scope
boundaries, so a block of the model that is smaller than a group is not split. A model that would be
one group is split in two if MemoryX can update one of them during the other's backward pass.

A layer with several uses in a pass, such as a tied weight, is a separate group: layers grouped with
it would be sent as often. So is a layer whose position differs between forward and backward.

A program over the store of another has its layers in that store's order, because a group of a
training is one piece of the store.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

SMALL_SHARE = 8  # a group of at most an eighth of the next one's bytes is merged into it

Uses = Iterable[frozenset[str]]  # the layers that each kernel of a pass uses, in program order


@dataclass(frozen=True)
class _LayerUnit:
    """Layers that stay in one group: one, or all that a kernel uses at once.

    forward, backward: its position in each pass, None if it has none. is_revisited: it has several.
    place: position of its first layer in the store, in layers.
    """

    layers: tuple[str, ...]
    nbytes: int
    forward: int | None
    backward: int | None
    is_revisited: bool
    place: int = 0

    @property
    def path(self) -> tuple[str, ...]:
        """Nested scopes of its first layer."""
        return tuple(self.layers[0].split("/"))

    def joins(self, following: "_LayerUnit") -> bool:
        """Return whether the two, as one group, have one turn a pass, and are one piece."""
        if self.is_revisited or following.is_revisited:
            return False
        if self.place + len(self.layers) != following.place:
            return False
        turns = self.backward, following.backward
        is_in_turn = None in turns or _follows(following.backward, self.backward)
        return is_in_turn and (
            following.forward is None or _follows(self.forward, following.forward)
        )


Run = list[_LayerUnit]


def group_layers(
    sizes: Mapping[str, int],
    forward: Uses,
    backward: Uses,
    group_bytes: int,
    concurrent_updates: bool = False,
    stored: Sequence[str] = (),
) -> list[tuple[str, ...]]:
    """Return the groups in the order of their first use, each with its layers in order.

    sizes: bytes of each layer's weights.
    group_bytes: bytes of consecutive layers whose weights are sent as one group.
    concurrent_updates: a group may be updated while the gradients of another are computed, so
        there are at least two groups.
    stored: layers of the store that the program uses, in their order there; they come first.
    """
    places = {layer: place for place, layer in enumerate(stored)}
    parts = _parts(sizes, list(forward), list(backward), places)
    groups = _absorbed(_packed(parts, 1, group_bytes), group_bytes)
    if concurrent_updates and len(groups) == 1:
        groups = _halved(groups[0])
    return [tuple(chain.from_iterable(part.layers for part in group)) for group in groups]


def _parts(
    sizes: Mapping[str, int],
    forward: list[frozenset[str]],
    backward: list[frozenset[str]],
    stored: Mapping[str, int],
) -> list[_LayerUnit]:
    """Return the units sorted by their place in the store, then by their first forward position.

    A unit without one comes after the layer that is declared before it.
    """
    order = sorted(sizes, key=lambda layer: stored.get(layer, len(stored)))
    sizes = {layer: sizes[layer] for layer in order}
    uses = [*forward, *backward]
    uses += _spans(_first_of_bound(sizes, uses), stored)
    first_of = _first_of_bound(sizes, uses)
    members: dict[str, list[str]] = {}
    for layer in sizes:
        members.setdefault(first_of[layer], []).append(layer)
    ahead, back = _turns(forward, first_of), _turns(backward, first_of)
    found = [
        _LayerUnit(
            tuple(layers),
            sum(sizes[layer] for layer in layers),
            ahead[first][0] if first in ahead else None,
            back[first][0] if first in back else None,
            max(len(ahead.get(first, ())), len(back.get(first, ()))) > 1,
        )
        for first, layers in members.items()
    ]
    keys, turn = [], -1
    for number, part in enumerate(found):
        turn = turn if part.forward is None else part.forward
        known = stored.get(part.layers[0], len(stored))
        keys.append((known, turn, part.forward is None, number))
    ordered = [found[number] for *_, number in sorted(keys)]
    return _placed(ordered, stored)


def _placed(parts: Run, stored: Mapping[str, int]) -> Run:
    """Return the units with their places; those that the store lacks follow all others."""
    found, end = [], len(stored)
    for part in parts:
        is_stored = part.layers[0] in stored
        found.append(replace(part, place=stored[part.layers[0]] if is_stored else end))
        end += 0 if is_stored else len(part.layers)
    return found


def _spans(first_of: Mapping[str, str], stored: Mapping[str, int]) -> list[frozenset[str]]:
    """Return for each unit the layers of the store from its first to its last one."""
    known = [layer for layer in first_of if layer in stored]
    places: dict[str, list[int]] = {}
    for layer in known:  # in the order of the store
        places.setdefault(first_of[layer], []).append(stored[layer])
    spans = [(own[0], own[-1]) for own in places.values()]
    wide = [(first, last) for first, last in spans if last > first]
    return [frozenset(x for x in known if a <= stored[x] <= b) for a, b in wide]


def _first_of_bound(sizes: Mapping[str, int], uses: Iterable[frozenset[str]]) -> dict[str, str]:
    """Return for each layer the first layer of those that kernels use together with it."""
    above = {layer: layer for layer in sizes}

    def root(layer: str) -> str:
        while above[layer] != layer:
            layer = above[layer]
        return layer

    place = {layer: place for place, layer in enumerate(sizes)}
    for layers in dict.fromkeys(uses):
        roots = sorted({root(layer) for layer in layers}, key=place.__getitem__)
        above.update(dict.fromkeys(roots[1:], roots[0]) if roots else {})
    return {layer: root(layer) for layer in sizes}


def _turns(uses: list[frozenset[str]], first_of: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the positions of each part in a pass; consecutive kernels that use it are one
    position.
    """
    used = (first_of[next(iter(layers))] for layers in uses if layers)
    turns: dict[str, list[int]] = {}
    for number, (first, _) in enumerate(groupby(used)):
        turns.setdefault(first, []).append(number)
    return turns


def _follows(turn: int | None, following: int | None) -> bool:
    return turn is not None and following is not None and following == turn + 1


def _nbytes(parts: Run) -> int:
    return sum(part.nbytes for part in parts)


def _is_one(parts: Run) -> bool:
    return all(part.joins(following) for part, following in pairwise(parts))


def _packed(parts: Sequence[_LayerUnit], depth: int, group_bytes: int) -> list[Run]:
    """Return runs of up to `group_bytes`, scope by scope; depth: length of the scopes' paths."""
    groups: list[Run] = []
    is_open = False
    for _, run in groupby(parts, key=lambda part: part.path[:depth]):
        scope = list(run)
        nbytes = _nbytes(scope)
        if len(scope) > 1 and (nbytes > group_bytes or not _is_one(scope)):
            groups += _packed(scope, depth + 1, group_bytes)
            is_open = False
        elif (
            is_open
            and _nbytes(groups[-1]) + nbytes <= group_bytes
            and _is_one([groups[-1][-1], scope[0]])
        ):
            groups[-1] += scope
        else:
            groups.append(scope)
            is_open = True
    return groups


def _absorbed(groups: list[Run], group_bytes: int) -> list[Run]:
    """Merge small groups into the next one, else into the previous one."""

    def is_small(group: Run, neighbour: Run) -> bool:
        nbytes = _nbytes(group)
        return nbytes < group_bytes and SMALL_SHARE * nbytes <= _nbytes(neighbour)

    forwards: list[Run] = []
    # From the last one on, so that several small ones in a row are merged into the same one.
    for group in reversed(groups):
        if forwards and is_small(group, forwards[0]) and group[-1].joins(forwards[0][0]):
            forwards[0] = [*group, *forwards[0]]
        else:
            forwards.insert(0, group)
    found: list[Run] = []
    for group in forwards:
        if found and is_small(group, found[-1]) and found[-1][-1].joins(group[0]):
            found[-1] = [*found[-1], *group]
        else:
            found.append(group)
    return found


def _halved(group: Run) -> list[Run]:
    """Split a training's only group into two of about equal size, unless one would be small."""
    cuts = [(group[:at], group[at:]) for at in range(1, len(group))]
    if not cuts or all(part.backward is None for part in group):
        return [group]
    halves = min(cuts, key=lambda cut: max(map(_nbytes, cut)))
    less, more = sorted(map(_nbytes, halves))
    return [group] if SMALL_SHARE * less <= more else [*halves]
