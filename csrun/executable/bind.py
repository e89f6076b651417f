"""From a plan and memory to the arrays that a program works on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from csrun.base.half_formats import WORD
from csrun.executable.plan import MOST_STEPS, Plan
from csrun.executable.shards import Own, StoreShards
from csrun.executable.stored_groups import Group, Parameter

# A cache line, and the widest vector register of a CPU.
ALIGNMENT_BYTES = 64


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize


def aligned(nbytes: int) -> int:
    """Rounded up to the alignment of arrays."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def half_bytes(nbytes: int, states: Iterable[Parameter]) -> int:
    """Bytes of a group's weights as words, and of its states behind them, as float32.

    nbytes: of both as float32
    """
    return nbytes // 2 + sum(aligned(nbytes_of(p.shape, p.dtype)) for p in states)


WEYL = 0x9E3779B9  # 2**32 over the golden ratio: batches of a step go apart from other steps

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]
Batch = tuple[Array, ...]


@dataclass(slots=True)
class StepState:
    """State of the step that a program computes; one object, changed in place.

    index: the global step, from 0; it keys schedules and random draws.
    first_sample: index within the global batch of this minibatch's first sample.
    rows: valid samples of the *global* batch; the others, after them, are padding.
    counts: labels of the global batch that count, for each range of each input.
    clip: what an update multiplies its gradients by, so that all together are not too long.
    loss_scale: what the loss is multiplied by before the backward pass.
    batch: which of its batches this is, of a step that takes several; is_last: the update follows.
    """

    index: int = 0
    first_sample: int = 0
    rows: int = 0
    counts: tuple[int, ...] = ()
    clip: float = 1.0
    loss_scale: float = 1.0
    batch: int = 0
    is_last: bool = True

    @property
    def draw(self) -> int:
        """Counter of a batch's random draws: the step, and which of its batches this is."""
        return (self.index + self.batch * WEYL) & 0xFFFFFFFF

    @property
    def valid(self) -> int:
        """Valid samples from this minibatch's first one on."""
        return max(0, self.rows - self.first_sample)


@dataclass(frozen=True, slots=True)
class WaferProgram:
    """The wafer's part of a bound program: a function a visit of the plan, in its order."""

    visits: list[Callable[[Batch, StepState], None]]


Halves = tuple[Callable[[StepState], None], Callable[[StepState], None]]


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """The learning algorithm's part of a bound program, a function a group.

    squares: where gradients are clipped, the sums of squares of each of a group's. halves: of large
    groups, two functions that do together what the group's does, and may run at once.
    """

    update: list[Callable[[StepState], None]]
    squares: list[Callable[[], list[float]]] = field(default_factory=list)
    halves: Mapping[int, Halves] = field(default_factory=dict)


def view(memory: Bytes, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
    """An array over `memory` (uint8[n]) at a byte offset; no copy."""
    return memory[offset : offset + nbytes_of(shape, dtype)].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class ShardedStore:
    """The stores of several MemoryX tasks, for who has mapped all of them.

    Shapes: memories uint8[plan.store.nbytes] each
    """

    shards: StoreShards
    memories: Sequence[Bytes]


AnyStore = Bytes | ShardedStore


def _memory_of(store: AnyStore, group: Group) -> Bytes:
    """The memory of the store that has a group."""
    if isinstance(store, ShardedStore):
        return store.memories[store.shards.server_of(group)]
    return store


def _memory_at(store: AnyStore, server: int) -> Bytes:
    """The memory of the store of a MemoryX task, from 0."""
    return store.memories[server] if isinstance(store, ShardedStore) else store


def flat_views(plan: Plan, store: AnyStore) -> dict[str, Array]:
    """The store's flat ranges by name: `weights/0`, `gradients/0`, `momentum/0`, … for each group;
    and `numbers`, those of the steps.

    In mixed precision there are `words/0`, too, and gradients may be words; then a state's next
    value is `next/<state>`.

    Shapes: each [group.nbytes / itemsize], of the plan's precision or WORD; a state's flat
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
            places[f"words/{group.index}"] = group, _words_offset(plan, group.offset_bytes), WORD
        if (offset := gradients_offset(plan, group)) is not None:
            places[f"gradients/{group.index}"] = group, offset, kind
    itemsize = np.dtype(plan.precision).itemsize
    views = {
        name: view(_memory_of(store, group), offset, (group.nbytes // itemsize,), dtype)
        for name, (group, offset, dtype) in places.items()
    }
    if plan.store.has_half_gradients:
        views |= _next_values(plan, store)
    numbers = numbers_view(plan, store)
    return views if numbers is None else {**views, "numbers": numbers}


def _words_offset(plan: Plan, offset_bytes: int) -> int:
    """Place in the store of the word of the weight at an offset."""
    assert plan.store.words_offset is not None, "weights are words in mixed precision"
    return plan.store.words_offset + offset_bytes // 2


def _next_values(plan: Plan, store: AnyStore) -> dict[str, Array]:
    """Next values of the states, beside gradients that are words; flat."""
    found, places = {}, sent_places(plan)
    for p, group in _with_groups(plan):
        if p.is_state and (block := gradient_block(plan, group, store)) is not None:
            place = places[p.name]
            found[f"next/{p.name}"] = view(block, place.offset_bytes, (prod(p.shape),), p.dtype)
    return found


def _with_groups(plan: Plan) -> list[tuple[Parameter, Group]]:
    """The parameters in the order of the store, each with its group."""
    group_of = {layer.name: plan.groups[layer.group] for layer in plan.layers}
    ordered = sorted(plan.parameters, key=lambda p: p.offset_bytes)
    return [(p, group_of[p.layer]) for p in ordered]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Location in the store of a tensor of this shape; is_turned: stored transposed."""

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str
    is_turned: bool = False

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.shape, self.dtype)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape as stored, row by row."""
        return self.shape[::-1] if self.is_turned else self.shape

    def view(self, memory: Bytes) -> Array:
        """The tensor, over the store's bytes; no copy."""
        stored = view(memory, self.offset_bytes, self.stored_shape, self.dtype)
        return stored.T if self.is_turned else stored


def sent_places(plan: Plan) -> dict[str, TensorPlace]:
    """Location of each parameter in the bytes of its group that come to the wafer.

    Its gradient lies alike in what goes back. In mixed precision the word of a weight has half the
    weight's offset, and states follow behind the words.
    """
    ends = {group.index: group.nbytes // 2 for group in plan.groups}
    found = {}
    for p, group in _with_groups(plan):
        offset, dtype = p.offset_bytes - group.offset_bytes, p.dtype
        if group.half_bytes is not None and p.is_state:
            offset = ends[group.index]
            ends[group.index] += aligned(nbytes_of(p.shape, p.dtype))
        elif group.half_bytes is not None:
            offset, dtype = offset // 2, WORD
        found[p.name] = TensorPlace(offset, p.shape, dtype)
    return found


def gradient_bytes(plan: Plan, group: Group) -> int:
    """Bytes of a group's gradients in the store."""
    return group.sent_bytes if plan.store.has_half_gradients else group.nbytes


def gradient_block(plan: Plan, group: Group, store: AnyStore) -> Bytes | None:
    """The bytes of a group's gradients in the store, if it has any."""
    offset = gradients_offset(plan, group)
    if offset is None:
        return None
    return _memory_of(store, group)[offset : offset + gradient_bytes(plan, group)]


def gradient_views(plan: Plan, store: AnyStore, own: Own = None) -> dict[str, Array]:
    """The gradients of the last step by parameter, where the store has all of them after it.

    Empty for several systems, and where they are a window. In mixed precision they may be words.
    """
    if plan.store.gradients_offset is None or plan.has_window or plan.systems > 1:
        return {}
    found, places = {}, sent_places(plan)
    for p, group in _with_groups(plan):
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
    """The numbers of the steps, if they have any; server: whose, of several stores.

    After them comes the norm of the step's gradients, which the updates write where they clip them,
    and the state of the loss's scale.

    Shapes: float64[MOST_STEPS, numbers + 1 + scale_numbers]; step s has row s mod MOST_STEPS
    """
    place = numbers_layout(plan)
    return None if place is None else place.view(_memory_at(store, server))


def step_number(numbers: Array, index: int) -> Callable[[int], float]:
    """A function that gives number `index` of a global step.

    Shapes: numbers as of `numbers_view`
    """
    number, rows = numbers.item, len(numbers)
    return lambda step: float(number(step % rows, index))


def share_of(plan: Plan) -> int:
    """Samples of the batch that each system has."""
    return plan.batch_size // plan.systems


def of_system(plan: Plan, system: int) -> Plan:
    """The plan with the gradients where the system of this number has its own."""
    region, stride = plan.store.gradients_offset, plan.store.gradients_stride_bytes
    if region is None or not system:
        return plan
    return replace(plan, store=replace(plan.store, gradients_offset=region + system * stride))


def losses_view(plan: Plan, store: AnyStore, server: int = 0) -> npt.NDArray[np.float64] | None:
    """The parts of a step's loss, in the store of several systems; server: whose, of its tasks.

    Shapes: float64[systems + 1], the last one their sum
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
    """Views of a checkpoint's tensors: parameters by name, optimizer slots as `slot/parameter`."""
    return {name: place.view(store) for name, place in state_layout(plan, own).items()}


def tensors_of(plan: Plan) -> list[Parameter]:
    """The tensors of the model: parameters, those that come in parts as a whole.

    Shapes are the model's, of those that are transposed, too.
    """
    return [replace(p, shape=p.shape[::-1]) if p.is_turned else p for p in stored_tensors_of(plan)]


def stored_tensors_of(plan: Plan) -> list[Parameter]:
    """The same, with the shapes that they have in the store."""
    found = []
    for p in plan.parameters:
        if p.part is None:
            found.append(p)
        elif p.part.first == 0:
            shape = (p.part.rows, *p.shape[1:])
            found.append(replace(p, name=p.part.tensor, shape=shape, part=None))
    return found


def state_layout(plan: Plan, own: Own = None) -> dict[str, TensorPlace]:
    """Location in the store of each tensor of the state."""
    layers = {layer.name for layer in plan.layers if own is None or layer.group in own}
    regions = [("", plan.store.weights_offset)]
    regions += [(f"{slot.name}/", slot.offset_bytes) for slot in plan.store.slots]
    return {
        f"{prefix}{p.name}": TensorPlace(base + p.offset_bytes, p.shape, p.dtype, p.is_turned)
        for prefix, base in regions
        for p in tensors_of(plan)
        if p.layer in layers and not (prefix and p.is_state)
    }


def wafer_views(
    plan: Plan, arena: Bytes, store: AnyStore, minibatch: int = 0, is_added: bool = False
) -> dict[str, Array]:
    """Views for the wafer's program: buffers by name, weights by parameter name, gradients as
    `gradient/<parameter>`.

    In weight streaming the weights are views of the arena's slots, else of the store. The gradients
    of all minibatches but the first are views of the arena's partial gradients, as are those that
    are to be added to earlier ones, and words of which the store has sums.
    """
    shift = minibatch * plan.minibatch_stride_bytes
    views = {b.name: view(arena, b.offset_bytes + shift, b.shape, b.dtype) for b in plan.buffers}
    places = sent_places(plan)
    for p, group in _with_groups(plan):
        place = places[p.name]
        if group.slot_offset_bytes is not None:
            offset = group.slot_offset_bytes + place.offset_bytes
            weights = view(arena, offset, p.shape, place.dtype)
        elif place.dtype == WORD:
            offset = _words_offset(plan, p.offset_bytes)
            weights = view(_memory_of(store, group), offset, p.shape, WORD)
        else:
            offset = plan.store.weights_offset + p.offset_bytes
            weights = view(_memory_of(store, group), offset, p.shape, p.dtype)
        views[p.name] = weights
        if (gradients := gradients_offset(plan, group)) is not None:
            memory = _memory_of(store, group)
            # The first minibatch writes to the store; what follows must not overwrite its
            # gradients.
            if minibatch or is_added or plan.sums_words:
                gradients, memory = plan.partial_offset_bytes, arena
            offset = gradients + place.offset_bytes
            views[f"gradient/{p.name}"] = view(memory, offset, p.shape, place.dtype)
    return views


def partial_gradients(plan: Plan, arena: Bytes) -> list[Bytes]:
    """The bytes of each group's gradients of a minibatch; one buffer for all groups."""
    first = plan.partial_offset_bytes
    return [arena[first : first + group.sent_bytes] for group in plan.groups]


def kept_outputs(plan: Plan, arena: Bytes) -> list[list[Array]]:
    """For each output, where its values of each minibatch are kept over micro-batches."""
    buffers = {b.name: b for b in plan.buffers}
    found, offset = [], plan.kept_offset_bytes
    for buffer in (buffers[output.buffer] for output in plan.outputs):
        step = aligned(nbytes_of(buffer.shape, buffer.dtype))
        places = [offset + j * step for j in range(plan.minibatches)]
        found.append([view(arena, place, buffer.shape, buffer.dtype) for place in places])
        offset += plan.minibatches * step
    return found


NO_LAYER = -1


def _unmarked(layer: int) -> None:
    """Nobody wants to know."""


def _unrecorded(step: StepState, number: int, value: Array) -> None:
    """Values are recorded by programs with a recording only."""


Record = Callable[[StepState, int, Array], None]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Runtime arguments of a program: the run's seed, for random draws.

    mark: called by a program with marks with the layer that begins, or NO_LAYER. threads: as many
    as compute its machine code. record: called by a program that records or measures its values,
    with each.
    """

    seed: int
    mark: Callable[[int], None] = _unmarked
    threads: int = 1
    record: Record = _unrecorded


BindWafer = Callable[[Mapping[str, Array], Runtime], WaferProgram]
BindUpdate = Callable[[Mapping[str, Array], Runtime], UpdateProgram]


def store_of(plan: Plan, arena: Bytes, store: Bytes | None) -> Bytes:
    """The store's bytes: the arena's front when the plan says so, else the given block.

    Shapes: arena uint8[plan.arena_bytes] -> uint8[plan.store.nbytes]
    """
    # On the CPU and pipelined there is no MemoryX whose memory it could be.
    if plan.store_in_arena:
        return arena[: plan.store.nbytes]
    if store is None:
        raise ValueError("a plan whose store is not in the arena needs one")
    return store
