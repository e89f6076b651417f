"""Binding of a program to memory: the arrays it works on, and its functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from csrun.base.half_formats import WORD
from csrun.executable.arrays import Array, Batch, Bytes, aligned, nbytes_of, view
from csrun.executable.plan import GRADIENT, Plan
from csrun.executable.store_places import (
    AnyStore,
    gradients_offset,
    memory_of,
    sent_places,
    with_groups,
    words_offset,
)

# 2**32 over the golden ratio: keeps the draws of a step's batches apart from those of other steps
WEYL = 0x9E3779B9


@dataclass(slots=True)
class StepState:
    """State of the step that a program computes; one object, updated in place.

    index: global step, from 0; key of schedules and random draws.
    first_sample: index within the global batch of this minibatch's first sample.
    rows: number of valid samples of the *global* batch; the rows after them are padding.
    counts: number of labels of the global batch that count, for each range of each input.
    clip: factor of the gradients that clips their global norm.
    loss_scale: factor of the loss before the backward pass.
    skipped: earlier steps whose updates loss scaling has skipped.
    batch: index of the batch in a step with gradient accumulation.
    is_last: whether this is the step's last batch, after which the update runs.
    """

    index: int = 0
    first_sample: int = 0
    rows: int = 0
    counts: tuple[int, ...] = ()
    clip: float = 1.0
    loss_scale: float = 1.0
    skipped: int = 0
    batch: int = 0
    is_last: bool = True

    @property
    def updates(self) -> int:
        """Number of earlier updates."""
        return self.index - self.skipped

    @property
    def draw(self) -> int:
        """Counter of a batch's random draws, from the step and the batch's index in it."""
        return (self.index + self.batch * WEYL) & 0xFFFFFFFF

    @property
    def valid(self) -> int:
        """Number of valid samples from this minibatch's first one on."""
        return max(0, self.rows - self.first_sample)


@dataclass(frozen=True, slots=True)
class WaferProgram:
    """Wafer's part of a bound program: one function per visit of the plan, in order."""

    visits: list[Callable[[Batch, StepState], None]]


Halves = tuple[Callable[[StepState], None], Callable[[StepState], None]]


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """Update part of a bound program: one function per group.

    squares: with clipping, functions that return the sums of squares of a group's gradients.
    halves: for large groups, two functions that together do the group's update, and may run
        concurrently.
    """

    update: list[Callable[[StepState], None]]
    squares: list[Callable[[], list[float]]] = field(default_factory=list)
    halves: Mapping[int, Halves] = field(default_factory=dict)


def share_of(plan: Plan) -> int:
    """Number of samples of the batch on each system."""
    return plan.batch_size // plan.systems


def wafer_views(
    plan: Plan, arena: Bytes, store: AnyStore, minibatch: int = 0, is_added: bool = False
) -> dict[str, Array]:
    """Return the arrays of the wafer's program: buffers, weights by parameter name, and gradients
    as `gradient:<parameter>`.

    In weight streaming the weights are views of the arena's slots, otherwise of the store.
    Gradients are views of the store. They are views of the arena's partial gradients for all
    minibatches but the first, for those that are accumulated, and for 16-bit gradients that the
    store sums in float32.
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
            # The first minibatch writes to the store; later ones must not overwrite its gradients.
            if minibatch or is_added or plan.sums_words:
                gradients, memory = plan.partial_offset_bytes, arena
            offset = gradients + place.offset_bytes
            views[GRADIENT + p.name] = view(memory, offset, p.shape, place.dtype)
    return views


def partial_gradients(plan: Plan, arena: Bytes) -> list[Bytes]:
    """Return each group's gradients of a minibatch, as bytes; all groups share one buffer."""
    first = plan.partial_offset_bytes
    return [arena[first : first + group.sent_bytes] for group in plan.groups]


def kept_outputs(plan: Plan, arena: Bytes) -> list[list[Array]]:
    """For each output, return the arrays that keep its value of each minibatch of a step."""
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
    """Default of programs without layer marks."""


def _unrecorded(step: StepState, number: int, value: Array) -> None:
    """Default of programs that record no values."""


Record = Callable[[StepState, int, Array], None]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Runtime arguments of a program.

    seed: the run's seed, for random draws.
    mark: callback at the beginning of each layer, with its index or NO_LAYER, in programs compiled
        with marks.
    threads: number of threads of machine code.
    replica_threads: number of threads that each compute replicas of the model.
    record: callback with each value, in programs that record or measure values.
    """

    seed: int
    mark: Callable[[int], None] = _unmarked
    threads: int = 1
    replica_threads: int = 1
    record: Record = _unrecorded


BindWafer = Callable[[Mapping[str, Array], Runtime], WaferProgram]

BindUpdate = Callable[[Mapping[str, Array], Runtime], UpdateProgram]

BIND_WORDS = "bind_words"  # function of a program in weight streaming
# of flat weights and the words of their numbers: the function that narrows the weights
BindWords = Callable[[Array, Array], Callable[[], None]]


def store_of(plan: Plan, arena: Bytes, store: Bytes | None) -> Bytes:
    """Return the store's bytes: the front of the arena if the plan says so, else the given block.

    Shapes: arena uint8[plan.arena_bytes] -> uint8[plan.store.nbytes]
    """
    # On the CPU and in pipelined mode there is no MemoryX that could hold the store.
    if plan.store_in_arena:
        return arena[: plan.store.nbytes]
    if store is None:
        raise ValueError("a plan whose store is not in the arena needs one")
    return store
