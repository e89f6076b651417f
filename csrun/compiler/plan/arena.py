"""Layout of the arena: store or weight slots at its front, then the buffers; and its size check."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from msgspec.structs import replace as replaced

from csrun.base.half_formats import SCALE_TENSORS
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler.errors import TooLargeError
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS
from csrun.compiler.matching import MatchedModel
from csrun.compiler.optimizers import PerTensor
from csrun.compiler.options import SHARE, CompileOptions
from csrun.compiler.plan.footprint import Footprint, footprint
from csrun.compiler.plan.memory_plan import Lifetime, lifetimes, place
from csrun.compiler.plan.slots import AHEAD_BYTES, place_gradients, place_groups
from csrun.compiler.plan.store_layout import Layout
from csrun.compiler.plan.visits import with_frees
from csrun.executable import (
    MOST_STEPS,
    Buffer,
    Region,
    Slot,
    StoreLayout,
    Visit,
    aligned,
    nbytes_of,
)
from csrun.executable.replica_plan import largest_sent_bytes


@dataclass(frozen=True)
class PlacedLayout:
    """A layout with all locations, in memory and on the fabric."""

    layout: Layout
    store: StoreLayout
    visits: tuple[Visit, ...]
    buffers: tuple[Buffer, ...]
    minibatch_stride_bytes: int
    partial_offset_bytes: int
    kept_offset_bytes: int
    arena_bytes: int
    floor_plan: tuple[Region, ...]


def place_model(
    model: MatchedModel, layout: Layout, options: CompileOptions, batch: int
) -> PlacedLayout:
    """Place store, slots and buffers in the arena, and the layers on the fabric.

    Raises: TooLargeError if the arena, or the data of pipelined layers on their own PEs, exceeds
    the system's memory
    """
    layout, store = with_store(layout, model, options)
    alive, base = alive_in(layout, model), store.nbytes
    if options.is_streaming:
        ahead_bytes = AHEAD_BYTES if model.storage is None else AHEAD_BYTES // 2
        layout, base = _with_slots(layout, options, ahead_bytes)
    buffers, first_end = place(alive, base)
    partial_bytes, kept_bytes = _partial_bytes(layout, store, options), _kept_bytes(model, options)
    room = options.system.sram_bytes - partial_bytes - kept_bytes
    if options.is_streaming and first_end > room:
        # Without space for prefetched weights a model may fit, but run slower.
        layout, base = _with_slots(layout, options, ahead_bytes=0)
        buffers, first_end = place(alive, base)
    stride = aligned(first_end - base)
    partial = base + options.at_once * stride
    kept = partial + partial_bytes
    end = kept + kept_bytes
    layers = footprint(layout, store, options)
    if max(end, layers.needed_bytes(alive)) > options.system.sram_bytes:
        raise _too_large(layers, alive, _most_samples(layers, alive, model, end, batch), end, batch)
    floor_plan = layers.floor_plan(alive) if layout.layers else ()
    visits = with_frees(
        layout.functions, {lifetime.array.name: lifetime.last for lifetime in alive}
    )
    return PlacedLayout(
        layout, store, visits, tuple(buffers), stride, partial, kept, end, floor_plan
    )


def alive_in(layout: Layout, model: MatchedModel) -> list[Lifetime]:
    """Return the buffers of a minibatch."""
    kept = [output.array for output in model.outputs] + ([LOSS] if model.has_loss else [])
    return lifetimes(layout.kernels, kept, {p.name for p in layout.parameters}, layout.dropped)


def with_samples(
    alive: Sequence[Lifetime], model: MatchedModel, samples: int, fewer: int
) -> list[Lifetime]:
    """Return the buffers of a minibatch with this many samples."""
    fixed = model.without_samples
    return [
        replace(lifetime, array=_with_samples(lifetime.array, samples, fewer))
        if lifetime.array.name not in fixed
        else lifetime
        for lifetime in alive
    ]


def _partial_bytes(layout: Layout, store: StoreLayout, options: CompileOptions) -> int:
    """Return the size of one group's gradients of a later minibatch or batch, before they are
    added, in each replica; and of all gradients of the replicas after the first.

    Also of the first minibatch, if they are words and the store has float32 sums.
    """
    trains = options.run_mode is RunMode.TRAIN
    sums_words = trains and layout.is_half and not store.has_half_gradients
    if not (options.adds_gradients or sums_words):
        return 0
    later = (options.replicas - 1) * store.gradients_bytes
    return options.replicas * largest_sent_bytes(layout.groups) + later


def _kept_bytes(model: MatchedModel, options: CompileOptions) -> int:
    """Return the size of all minibatches' outputs, if the next micro-batch would overwrite them."""
    if options.micro_batches == 1:
        return 0
    arrays = (output.array for output in model.outputs)
    return options.minibatches * sum(aligned(nbytes_of(a.shape, a.dtype)) for a in arrays)


def with_store(
    layout: Layout, model: MatchedModel, options: CompileOptions
) -> tuple[Layout, StoreLayout]:
    """Return the store of a training with its gradients, or of the weights alone."""
    region = layout.region_bytes
    words = aligned(region // 2) if _keeps_words(model, options) else None
    if options.run_mode is not RunMode.TRAIN:
        return layout, _with_words(StoreLayout(region, 0, None, ()), words)
    layout, gradients_bytes = _with_gradients(layout, model, options)
    state = region + options.systems * gradients_bytes
    first_values = {
        name: optimizer.first_value(name)
        for optimizer in model.updates.values()
        for name in optimizer.slots
    }
    slots = tuple(
        Slot(name, state + index * region, value)
        for index, (name, value) in enumerate(first_values.items())
    )
    store = _with_words(StoreLayout(state + len(slots) * region, 0, region, slots), words)
    is_half = has_half_gradients(model, options)
    store = replaced(store, gradients_bytes=gradients_bytes, has_half_gradients=is_half)
    end, numbers = store.nbytes, _step_numbers(model)
    scale = 0 if model.loss_scaling is None else len(SCALE_TENSORS)
    if numbers or scale:
        nbytes = aligned(nbytes_of((MOST_STEPS, numbers + 1 + scale), "float64"))
        rows = {"numbers": numbers, "numbers_offset": end, "scale_numbers": scale}
        store = replaced(store, nbytes=end + nbytes, **rows)
    return layout, _of_several(store, options.systems)


def _keeps_words(model: MatchedModel, options: CompileOptions) -> bool:
    """Return whether the store has the weights as 16-bit words, next to the master weights.

    A streamed step of one batch sends each weight twice, the second time just before its update,
    which reads the master weight in any case: words would only add to what the store reads and
    writes. Master weights are narrowed when they are sent instead.
    """
    is_sent_twice = (
        options.is_streaming
        and options.run_mode is RunMode.TRAIN
        and options.micro_batches == 1
        and not options.accumulates
    )
    return model.storage is not None and not is_sent_twice


def has_half_gradients(model: MatchedModel, options: CompileOptions) -> bool:
    """Return whether gradients in the store are 16-bit words: not summed, and not modified
    there.
    """
    if model.storage is None or options.run_mode is not RunMode.TRAIN:
        return False
    # An optimizer with per-tensor norms stores its first loop's results in place of gradients.
    is_changed = any(isinstance(each, PerTensor) for each in model.updates.values())
    return not (options.adds_gradients or options.systems > 1 or is_changed)


def _with_words(store: StoreLayout, nbytes: int | None) -> StoreLayout:
    """Add a region for the weights as words to the store, if their size is not 0."""
    if nbytes is None:
        return store
    return replaced(store, nbytes=store.nbytes + nbytes, words_offset=store.nbytes)


def _of_several(store: StoreLayout, systems: int) -> StoreLayout:
    """Add the partial losses of several systems to the store."""
    if systems == 1:
        return store
    losses = aligned(nbytes_of((systems + 1,), "float64"))
    return replaced(store, nbytes=store.nbytes + losses, losses_offset=store.nbytes)


def _step_numbers(model: MatchedModel) -> int:
    """Return how many numbers are passed with each step."""
    return 1 + max((i for each in model.updates.values() for i in each.step_numbers), default=-1)


def _with_gradients(
    layout: Layout, model: MatchedModel, options: CompileOptions
) -> tuple[Layout, int]:
    """Return the locations of the gradients, and their size: a window if MemoryX updates as they
    arrive.
    """
    sizes = [group.nbytes for group in layout.groups]
    if has_half_gradients(model, options):
        sizes = [aligned(group.sent_bytes) for group in layout.groups]
    offsets: list[int | None] = [*accumulate(sizes[:-1], initial=0)] if sizes else []
    nbytes = sum(sizes)
    is_whole = options.micro_batches == 1 and not options.accumulates
    is_immediate = not model.measures and is_whole
    if options.is_streaming and is_immediate:
        visits = [function.visit for function in layout.functions]
        offsets, nbytes = place_gradients(sizes, visits)
    groups = tuple(
        replaced(group, gradients_offset_bytes=offset)
        for group, offset in zip(layout.groups, offsets, strict=True)
    )
    return replace(layout, groups=groups), nbytes


def _with_slots(layout: Layout, options: CompileOptions, ahead_bytes: int) -> tuple[Layout, int]:
    """Return the weight slots at the arena's front: for a group and the next ones."""
    order = [group for function in layout.functions for group in function.visit.groups]
    if options.micro_batches > 1 or options.accumulates:
        # Micro-batches follow each other: the first group is prefetched during the last one.
        order += order[:1]
    sizes = [aligned(group.sent_bytes) for group in layout.groups]
    offsets, nbytes = place_groups(sizes, order, ahead_bytes)
    groups = tuple(
        replaced(group, slot_offset_bytes=offset)
        for group, offset in zip(layout.groups, offsets, strict=True)
    )
    return replace(layout, groups=groups), nbytes


def _too_large(
    layers: Footprint, alive: Sequence[Lifetime], fits: int, arena: int, batch: int
) -> TooLargeError:
    """Return the error that names the layer with most memory, and a remedy; fits: samples that
    would fit.
    """
    options, system = layers.options, layers.options.system
    sizes = layers.layer_bytes(alive)
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    needed = max(arena, layers.needed_bytes(alive))
    why = f"{needed:,} bytes on the wafer, {system.name} has {system.sram_bytes:,}"
    return TooLargeError(
        f"layer {layers.layers[largest].name} needs {sizes[largest]:,} bytes of {needed:,} "
        f"on the wafer, {system.name} has {system.sram_bytes:,}: {_remedy(options, fits, batch)}",
        fits,
        why,
    )


def _remedy(options: CompileOptions, fits: int, batch: int) -> str:
    """Return the remedy; fits: maximum number of samples at a time that would fit, 0 if none
    does.
    """
    smaller = [f"lower batch_size to {fits * options.systems}"] if fits else []
    if fits and options.micro_batches > 1:
        size = next(n for n in range(fits, 0, -1) if batch % n == 0)
        smaller = [f"lower micro_batch_size to {size}"]
    if options.mode is ExecutionMode.PIPELINED:
        return " or ".join(["use weight streaming (csrun_wse with python-ws)", *smaller])
    share = options.system.sram_bytes // SHARE
    if not fits and (options.max_group_bytes or 0) > share:
        return f"lower max_group_bytes to {share} (an eighth of the wafer), or remove it"
    return next(iter(smaller), "give the layer fewer units, or use a larger system")


def _most_samples(
    layers: Footprint, alive: Sequence[Lifetime], model: MatchedModel, arena: int, batch: int
) -> int:
    """Return the largest micro-batch that fits, 0 if none does; arena: size for the full batch."""
    options = layers.options
    at_once = options.at_once
    samples = batch // options.minibatches
    buffers = aligned(place(alive, 0)[1])

    def nbytes(fewer: int) -> int:
        scaled = with_samples(alive, model, samples, fewer)
        saved = at_once * (buffers - aligned(place(scaled, 0)[1]))
        return max(arena - saved, layers.needed_bytes(scaled))

    fitting = bisect_right(range(1, samples), options.system.sram_bytes, key=nbytes)
    return fitting * at_once


def _with_samples(array: Array, samples: int, fewer: int) -> Array:
    """Return the array with another number of samples, if an axis has the rows of all of them.

    The axis is irrelevant, because only the size is used.
    """
    fitting = (a for a, size in enumerate(array.shape) if size and size % samples == 0)
    axis = next(fitting, None)
    if axis is None:
        return array
    rows = array.shape[axis] // samples
    shape = *array.shape[:axis], fewer * rows, *array.shape[axis + 1 :]
    return Array(array.name, shape, array.dtype)
