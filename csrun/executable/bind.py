"""From a plan and memory to the arrays that a program works on, and the parts of a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from csrun.base.half_formats import WORD
from csrun.executable.arrays import Array, Batch, Bytes, aligned, nbytes_of, view
from csrun.executable.plan import Plan
from csrun.executable.store_places import (
    AnyStore,
    gradients_offset,
    memory_of,
    sent_places,
    with_groups,
    words_offset,
)

WEYL = 0x9E3779B9  # 2**32 over the golden ratio: batches of a step go apart from other steps


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


def share_of(plan: Plan) -> int:
    """Samples of the batch that each system has."""
    return plan.batch_size // plan.systems


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
    for p, group in with_groups(plan):
        place = places[p.name]
        if group.slot_offset_bytes is not None:
            offset = group.slot_offset_bytes + place.offset_bytes
            weights = view(arena, offset, p.shape, place.dtype)
        elif place.dtype == WORD:
            offset = words_offset(plan, p.offset_bytes)
            weights = view(memory_of(store, group), offset, p.shape, WORD)
        else:
            offset = plan.store.weights_offset + p.offset_bytes
            weights = view(memory_of(store, group), offset, p.shape, p.dtype)
        views[p.name] = weights
        if (gradients := gradients_offset(plan, group)) is not None:
            memory = memory_of(store, group)
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
