"""Relocation of a program's plan onto the store of another program.

Programs of one run (a training and its evaluation, an incomplete last batch) share weights and
optimizer state. One of them, the owner, defines the layout of the store, with a window for the
gradients of the program with the largest ones. The others find their parameters in it by name. Only
a store at the front of the arena outlives a step, so the buffers of all programs overlap after it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.executable.arrays import aligned, half_bytes, nbytes_of
from csrun.executable.plan import Buffer, Plan, Visit
from csrun.executable.shards import piece_starts
from csrun.executable.store_places import gradient_bytes, stored_tensors_of
from csrun.executable.stored_groups import Group, Layer, Parameter, StoreLayout

_AFTER_GRADIENTS = "words_offset", "numbers_offset", "losses_offset"


def relocated_plan(owner: Plan, plan: Plan) -> Plan:
    """Relocate a plan onto the store of `owner`.

    If parameters of a group are not adjacent there, or are in several of the owner's groups, which
    different MemoryX tasks may have, the group is split. A group with an update cannot be split,
    because the update loops over the whole group.

    Raises: CsrunError if the store lacks something that the program needs
    """
    _require_compatible(owner, plan)
    theirs = _theirs(owner, plan)
    shift = {p.name: theirs[p.name].offset_bytes - p.offset_bytes for p in plan.parameters}
    parameters, layers, groups, visits = _regrouped(plan, shift, _homes(owner, plan, shift))
    if plan.accumulates:
        groups = tuple(replace(g, gradients_offset_bytes=g.offset_bytes) for g in groups)
    placed = replace(
        plan,
        parameters=tuple(
            replace(p, offset_bytes=p.offset_bytes + shift[p.name]) for p in parameters
        ),
        layers=layers,
        groups=groups,
        visits=visits,
    )
    return with_store(placed, _store(owner, plan))


def with_store(plan: Plan, store: StoreLayout) -> Plan:
    """Return the plan with a store that is at least as large; arena buffers are shifted after
    it.
    """
    more = store.nbytes - plan.store.nbytes if plan.store_in_arena else 0
    return replace(
        plan,
        store=store,
        buffers=tuple(_moved(buffer, more) for buffer in plan.buffers),
        partial_offset_bytes=plan.partial_offset_bytes + more,
        kept_offset_bytes=plan.kept_offset_bytes + more,
        arena_bytes=plan.arena_bytes + more,
    )


def with_window(plan: Plan, nbytes: int) -> Plan:
    """Return the plan of a training with a gradient window of at least this size per system.

    A plan without gradients, or with a large enough window, is returned unchanged. Regions after
    the gradients are shifted.
    """
    store = plan.store
    more = aligned(nbytes) - store.gradients_bytes
    if store.gradients_offset is None or more <= 0:
        return plan
    length = plan.systems * more
    later = {name: getattr(store, name) for name in _AFTER_GRADIENTS}
    grown = replace(
        store,
        nbytes=store.nbytes + length,
        gradients_bytes=store.gradients_bytes + more,
        slots=tuple(replace(s, offset_bytes=s.offset_bytes + length) for s in store.slots),
        **{name: offset + length for name, offset in later.items() if offset is not None},
    )
    return with_store(plan, grown)


def window_bytes(plan: Plan) -> int:
    """Return the size that the gradient window must have for a program, per system."""
    ends = (
        g.gradients_offset_bytes + gradient_bytes(plan, g)
        for g in plan.groups
        if g.gradients_offset_bytes is not None
    )
    return max(ends, default=0)


def _theirs(owner: Plan, plan: Plan) -> dict[str, Parameter]:
    """Return the owner's entries of the plan's parameters by name, sharded or not."""
    there = {p.name: p for p in (*stored_tensors_of(owner), *owner.parameters)}
    found = {p.name: there[p.name] for p in plan.parameters if p.name in there}
    for p in plan.parameters:
        if p.name not in found and p.part is not None and p.part.tensor in there:
            whole = there[p.part.tensor]
            rows = min(p.shape[0], whole.shape[0] - p.part.first)
            before = nbytes_of((p.part.first, *whole.shape[1:]), whole.dtype)
            shape, offset = (rows, *whole.shape[1:]), whole.offset_bytes + before
            found[p.name] = replace(whole, name=p.name, shape=shape, offset_bytes=offset)
    return found


def _require_compatible(owner: Plan, plan: Plan) -> None:
    for name in ("mode", "precision", "storage", "store_in_arena", "systems"):
        ours, its = getattr(plan, name), getattr(owner, name)
        if ours != its:
            raise _unlike(plan, f"{name} is {ours}, the run's first program has {its}")
    theirs = _theirs(owner, plan)
    kinds = {name: (p.shape, p.dtype) for name, p in theirs.items()}
    for p in plan.parameters:
        found = kinds.get(p.name)
        if found is None:
            remedy = "use it in training too, or evaluate in a separate run"
            raise _unlike(plan, f"parameter {p.name} is not in the run's store: {remedy}")
        if theirs[p.name].is_transposed != p.is_transposed:
            why = f"{p.name} is stored transposed in only one of the run's programs"
            raise _unlike(plan, f"{why}: raise max_group_bytes so that neither shards it")
        if found != (p.shape, p.dtype):
            shapes = f"{p.dtype}{list(p.shape)} here, {found[1]}{list(found[0])} in the run's store"
            raise _unlike(plan, f"parameter {p.name} is {shapes}")
    if plan.run_mode is RunMode.TRAIN:
        _require_training(owner, plan)


def _require_training(owner: Plan, plan: Plan) -> None:
    if owner.run_mode is not RunMode.TRAIN:
        raise _unlike(
            plan,
            "the run's store has no optimizer state because an evaluation came first: start with "
            "a training step, or evaluate in a separate run",
        )
    if missing := {s.name for s in plan.store.slots} - {s.name for s in owner.store.slots}:
        names = ", ".join(sorted(missing))
        raise _unlike(
            plan, f"the run's store has no optimizer state {names}: use one optimizer per run"
        )
    if plan.store.numbers > owner.store.numbers:
        raise _unlike(plan, "the run's store has no space for its step numbers")
    ours, its = window_bytes(plan), owner.store.gradients_bytes
    if ours > its:
        raise _unlike(
            plan,
            f"gradients need {ours:,} bytes, the run's store has {its:,}: start with this step",
        )


def _unlike(plan: Plan, why: str) -> CsrunError:
    return CsrunError(f"{plan.run_mode} program with batch_size {plan.batch_size}: {why}")


def _store(owner: Plan, plan: Plan) -> StoreLayout:
    """Return the program's layout in the owner's store; an evaluation only sees the weights."""
    if plan.run_mode is not RunMode.TRAIN:
        return replace(owner.store, gradients_offset=None, slots=(), has_half_gradients=False)
    own = {slot.name for slot in plan.store.slots}
    return replace(
        owner.store,
        slots=tuple(s for s in owner.store.slots if s.name in own),
        has_half_gradients=plan.store.has_half_gradients,
    )


def _moved(buffer: Buffer, more: int) -> Buffer:
    return replace(buffer, offset_bytes=buffer.offset_bytes + more)


_Regrouped = tuple[tuple[Parameter, ...], tuple[Layer, ...], tuple[Group, ...], tuple[Visit, ...]]


def _homes(owner: Plan, plan: Plan, shift: dict[str, int]) -> dict[str, int]:
    """Return for each parameter the part of the store that it is in and that must not be cut."""
    if plan.run_mode is RunMode.TRAIN:
        # A training is refused: its update loops over the whole group.
        return dict.fromkeys((p.name for p in plan.parameters), 0)
    starts, _ = piece_starts(owner)
    return {p.name: bisect_right(starts, p.offset_bytes + shift[p.name]) for p in plan.parameters}


def _regrouped(plan: Plan, shift: dict[str, int], homes: dict[str, int]) -> _Regrouped:
    """Return the groups split at the store's boundaries, with all references renumbered.

    homes: as returned by `_homes`.
    """
    layer_of = {name: layer for layer in plan.layers for name in layer.parameters}
    names = {p.name: p.layer for p in plan.parameters}
    owns: list[list[Parameter]] = [[] for _ in plan.groups]
    for p in sorted(plan.parameters, key=lambda p: p.offset_bytes):
        owns[layer_of[p.name].group].append(p)
    groups: list[Group] = []
    layers: list[Layer] = []
    pieces_of: dict[int, tuple[int, ...]] = {}
    for group in plan.groups:
        first = len(groups)
        made: list[Group] = []
        pieces = list(_pieces(owns[group.index], shift, homes))
        if len(pieces) > 1 and plan.run_mode is RunMode.TRAIN:
            parts = ", ".join(piece[0].name for piece in pieces)
            raise _unlike(
                plan, f"{parts} are not adjacent in the run's store: train the same parameters"
            )
        for number, piece in enumerate(pieces):
            index = first + number
            made.append(_piece_group(group, index, piece, shift, is_whole=len(pieces) == 1))
            held: dict[str, list[str]] = {}
            for p in piece:
                held.setdefault(p.layer, []).append(p.name)
            for whole, own in held.items():
                # a split layer has an entry for each piece
                name = whole if number == 0 else f"{whole} ({number + 1})"
                layer = layer_of[own[0]]
                layers.append(replace(layer, name=name, group=index, parameters=tuple(own)))
                names.update(dict.fromkeys(own, name))
        groups += _with_slots(group, made)
        pieces_of[group.index] = tuple(range(first, len(groups)))
    parameters = tuple(replace(p, layer=names[p.name]) for p in plan.parameters)
    return parameters, tuple(layers), tuple(groups), tuple(_visits(plan, pieces_of))


def _pieces(
    own: Sequence[Parameter], shift: dict[str, int], homes: dict[str, int]
) -> Iterator[list[Parameter]]:
    """Split the parameters of a group where the store has something between two of them."""
    piece = list(own[:1])
    for before, p in pairwise(own):
        if shift[p.name] != shift[before.name] or homes[p.name] != homes[before.name]:
            yield piece
            piece = []
        piece.append(p)
    yield piece


def _piece_group(
    group: Group, index: int, piece: Sequence[Parameter], shift: dict[str, int], is_whole: bool
) -> Group:
    if is_whole:
        moved = shift[piece[0].name] if piece else 0
        return replace(group, index=index, offset_bytes=group.offset_bytes + moved)
    start, last = piece[0].offset_bytes, piece[-1]
    nbytes = last.offset_bytes + aligned(nbytes_of(last.shape, last.dtype)) - start
    is_half = group.half_bytes is not None
    return replace(
        group,
        index=index,
        layers=tuple(dict.fromkeys(p.layer for p in piece)),
        offset_bytes=start + shift[last.name],
        nbytes=nbytes,
        half_bytes=half_bytes(nbytes, (p for p in piece if p.is_state)) if is_half else None,
    )


def _with_slots(group: Group, pieces: Sequence[Group]) -> list[Group]:
    """Assign consecutive slot offsets to the pieces of a group."""
    if group.slot_offset_bytes is None:
        return [*pieces]
    *starts, _ = accumulate((piece.sent_bytes for piece in pieces), initial=group.slot_offset_bytes)
    return [replace(p, slot_offset_bytes=at) for p, at in zip(pieces, starts, strict=True)]


def _visits(plan: Plan, pieces_of: dict[int, tuple[int, ...]]) -> Iterator[Visit]:
    def pieces(groups: Sequence[int]) -> tuple[int, ...]:
        return tuple(piece for group in groups for piece in pieces_of[group])

    for visit in plan.visits:
        yield replace(
            visit,
            groups=pieces(visit.groups),
            gradients=pieces(visit.gradients),
            completes=pieces(visit.completes),
        )
