"""Locations in the store: weights, 16-bit words, gradients, optimizer slots, numbers of the
steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from csrun.base.half_formats import WORD
from csrun.executable.arrays import Array, Bytes, aligned, nbytes_of, view
from csrun.executable.plan import MOST_STEPS, Plan
from csrun.executable.shards import Own, StoreShards
from csrun.executable.stored_groups import Group, Parameter


@dataclass(frozen=True, slots=True)
class ShardedStore:
    """Stores of several MemoryX tasks, mapped by one process.

    Shapes: memories uint8[plan.store.nbytes] each
    """

    shards: StoreShards
    memories: Sequence[Bytes]


AnyStore = Bytes | ShardedStore


def memory_of(store: AnyStore, group: Group) -> Bytes:
    """Return the memory of the store that has a group."""
    if isinstance(store, ShardedStore):
        return store.memories[store.shards.server_of(group)]
    return store


def _memory_at(store: AnyStore, server: int) -> Bytes:
    """Return the memory of the store of MemoryX task `server`, from 0."""
    return store.memories[server] if isinstance(store, ShardedStore) else store


def flat_views(plan: Plan, store: AnyStore) -> dict[str, Array]:
    """Return the store's flat regions by name: `weights/0`, `gradients/0`, `momentum/0`, … for each
    group, and `numbers` for those of the steps.

    In mixed precision there may also be `words/0`, and gradients may be words; the next value of a
    state is then `next/<state>`.

    Shapes: each [group.nbytes / itemsize], of the plan's precision or WORD; states are flat
    """
    slots = [(slot.name, slot.offset_bytes) for slot in plan.store.slots]
    places = {
        f"{name}/{group.index}": (group, base + group.offset_bytes, plan.precision)
        for name, base in [("weights", plan.store.weights_offset), *slots]
        for group in plan.groups
    }
    kind = WORD if plan.store.has_half_gradients else plan.precision
    for group in plan.groups:
        if plan.store.words_offset is not None:
            places[f"words/{group.index}"] = group, words_offset(plan, group.offset_bytes), WORD
        if (offset := gradients_offset(plan, group)) is not None:
            places[f"gradients/{group.index}"] = group, offset, kind
    itemsize = np.dtype(plan.precision).itemsize
    views = {
        name: view(memory_of(store, group), offset, (group.nbytes // itemsize,), dtype)
        for name, (group, offset, dtype) in places.items()
    }
    if plan.store.has_half_gradients:
        views |= _next_values(plan, store)
    numbers = numbers_view(plan, store)
    return views if numbers is None else {**views, "numbers": numbers}


def words_offset(plan: Plan, offset_bytes: int) -> int:
    """Offset in the store of the 16-bit word of the weight at an offset."""
    assert plan.store.words_offset is not None, "weights are words in mixed precision"
    return plan.store.words_offset + offset_bytes // 2


def _next_values(plan: Plan, store: AnyStore) -> dict[str, Array]:
    """Return the next values of states, which follow gradients that are words; flat."""
    found, places = {}, sent_places(plan)
    for p, group in with_groups(plan):
        if p.is_state and (block := gradient_block(plan, group, store)) is not None:
            place = places[p.name]
            found[f"next/{p.name}"] = view(block, place.offset_bytes, (prod(p.shape),), p.dtype)
    return found


def with_groups(plan: Plan) -> list[tuple[Parameter, Group]]:
    """Return the parameters in the order of the store, each with its group."""
    group_of = {layer.name: plan.groups[layer.group] for layer in plan.layers}
    ordered = sorted(plan.parameters, key=lambda p: p.offset_bytes)
    return [(p, group_of[p.layer]) for p in ordered]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Location of a tensor in the store; is_transposed: stored transposed."""

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str
    is_transposed: bool = False

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.shape, self.dtype)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape as stored, in row-major order."""
        return self.shape[::-1] if self.is_transposed else self.shape

    def view(self, memory: Bytes) -> Array:
        """Return the tensor as a view of the store's bytes."""
        stored = view(memory, self.offset_bytes, self.stored_shape, self.dtype)
        return stored.T if self.is_transposed else stored


def sent_places(plan: Plan) -> dict[str, TensorPlace]:
    """Return the location of each parameter in the bytes of its group that are sent to the wafer.

    Its gradient has the same location in the bytes that are sent back. In mixed precision a
    weight's word is at half the weight's offset, and states follow after the words.
    """
    ends = {group.index: group.nbytes // 2 for group in plan.groups}
    found = {}
    for p, group in with_groups(plan):
        offset, dtype = p.offset_bytes - group.offset_bytes, p.dtype
        if group.half_bytes is not None and p.is_state:
            offset = ends[group.index]
            ends[group.index] += aligned(nbytes_of(p.shape, p.dtype))
        elif group.half_bytes is not None:
            offset, dtype = offset // 2, WORD
        found[p.name] = TensorPlace(offset, p.shape, dtype)
    return found


def gradient_bytes(plan: Plan, group: Group) -> int:
    """Size of a group's gradients in the store, in bytes."""
    return group.sent_bytes if plan.store.has_half_gradients else group.nbytes


def gradient_block(plan: Plan, group: Group, store: AnyStore) -> Bytes | None:
    """Return the bytes of a group's gradients in the store, if it has any."""
    offset = gradients_offset(plan, group)
    if offset is None:
        return None
    return memory_of(store, group)[offset : offset + gradient_bytes(plan, group)]


def gradient_views(plan: Plan, store: AnyStore, own: Own = None) -> dict[str, Array]:
    """Return the gradients of the last step by parameter, if the store keeps all of them.

    Empty for several systems, and if gradients share a window. In mixed precision they may be
    words.
    """
    if plan.store.gradients_offset is None or plan.has_window or plan.systems > 1:
        return {}
    found, places = {}, sent_places(plan)
    for p, group in with_groups(plan):
        is_there = own is None or group.index in own
        block = gradient_block(plan, group, store) if is_there and not p.is_state else None
        if block is not None and plan.store.has_half_gradients:
            found[p.name] = places[p.name].view(block)
        elif block is not None:
            found[p.name] = view(block, p.offset_bytes - group.offset_bytes, p.shape, p.dtype)
    return found


def numbers_layout(plan: Plan) -> TensorPlace | None:
    """Location of the step numbers in the store, if there are any."""
    offset = plan.store.numbers_offset
    if offset is None:
        return None
    columns = plan.store.numbers + 1 + plan.store.scale_numbers
    return TensorPlace(offset, (MOST_STEPS, columns), "float64")


def numbers_view(plan: Plan, store: AnyStore, server: int = 0) -> Array | None:
    """Return the numbers of the steps, if there are any; server: task with the store, if several.

    They are followed by the global norm of the step's gradients, which updates write if they clip,
    and by the state of the loss scale.

    Shapes: float64[MOST_STEPS, numbers + 1 + scale_numbers]; step s has row s mod MOST_STEPS
    """
    place = numbers_layout(plan)
    return None if place is None else place.view(_memory_at(store, server))


def step_number(numbers: Array, index: int) -> Callable[[int], float]:
    """Return a function from the global step to its number `index`.

    Shapes: numbers as of `numbers_view`
    """
    number, rows = numbers.item, len(numbers)
    return lambda step: float(number(step % rows, index))


def of_system(plan: Plan, system: int) -> Plan:
    """Return the plan with the gradients at the offset of system k."""
    region, nbytes = plan.store.gradients_offset, plan.store.gradients_bytes
    if region is None or not system:
        return plan
    return replace(plan, store=replace(plan.store, gradients_offset=region + system * nbytes))


def losses_view(plan: Plan, store: AnyStore, server: int = 0) -> npt.NDArray[np.float64] | None:
    """Return the partial losses of a step in the store of several systems; server: task with it.

    Shapes: float64[systems + 1], the last one is the sum
    """
    offset = plan.store.losses_offset
    if offset is None:
        return None
    return np.asarray(
        view(_memory_at(store, server), offset, (plan.systems + 1,), "float64"), np.float64
    )


def gradients_offset(plan: Plan, group: Group) -> int | None:
    """Offset of a group's gradients in the store, if it has any."""
    region, offset = plan.store.gradients_offset, group.gradients_offset_bytes
    return None if region is None or offset is None else region + offset


def state_views(plan: Plan, store: Bytes, own: Own = None) -> dict[str, Array]:
    """Return a checkpoint's tensors as views: parameters by name, optimizer slots as
    `slot/parameter`.
    """
    return {name: place.view(store) for name, place in state_layout(plan, own).items()}


def tensors_of(plan: Plan) -> list[Parameter]:
    """Return the model's tensors; shards are merged to full tensors.

    Shapes are those of the model, also for tensors that are stored transposed.
    """
    return [
        replace(p, shape=p.shape[::-1]) if p.is_transposed else p for p in stored_tensors_of(plan)
    ]


def stored_tensors_of(plan: Plan) -> list[Parameter]:
    """Return the model's tensors with the shapes that they have in the store."""
    found = []
    for p in plan.parameters:
        if p.part is None:
            found.append(p)
        elif p.part.first == 0:
            shape = (p.part.rows, *p.shape[1:])
            found.append(replace(p, name=p.part.tensor, shape=shape, part=None))
    return found


def state_layout(plan: Plan, own: Own = None) -> dict[str, TensorPlace]:
    """Return the location in the store of each tensor of the state, as in a checkpoint."""
    layers = {layer.name for layer in plan.layers if own is None or layer.group in own}
    regions = [("", plan.store.weights_offset)]
    regions += [(f"{slot.name}/", slot.offset_bytes) for slot in plan.store.slots]
    return {
        f"{prefix}{p.name}": TensorPlace(base + p.offset_bytes, p.shape, p.dtype, p.is_transposed)
        for prefix, base in regions
        for p in tensors_of(plan)
        if p.layer in layers and not (p.is_of_step or (prefix and p.is_state))
    }
