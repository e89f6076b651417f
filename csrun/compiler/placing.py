"""The arena: store or weight slots at its front, the buffers behind; and whether it fits."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from csrun.compiler.array import LOSS, Array
from csrun.compiler.errors import CompileError
from csrun.compiler.layers import Layout, nbytes_of_parameter
from csrun.compiler.matching import MatchedModel
from csrun.compiler.memory import Life, lives, place
from csrun.compiler.options import CompileOptions
from csrun.compiler.updates import Optimizer
from csrun.executable import Buffer, Store, aligned
from csrun.mode import ExecutionMode, RunMode
from csrun.site import System


@dataclass(frozen=True)
class Placed:
    """A layout with everything at its place."""

    layout: Layout
    store: Store
    buffers: tuple[Buffer, ...]
    minibatch_stride_bytes: int
    partial_offset_bytes: int
    arena_bytes: int


def place_model(model: MatchedModel, layout: Layout, options: CompileOptions, batch: int) -> Placed:
    """Place store, slots and buffers.

    Raises: CompileError when the arena is larger than the system's memory.
    """
    store = _store(layout, model.updates, options.run_mode)
    if options.mode is ExecutionMode.WEIGHT_STREAMING:
        layout, base = _with_slots(layout)
    else:
        base = store.nbytes
    kernels = [*chain(*layout.forward), *chain(*layout.backward[::-1])]
    kept = [output.array for output in model.outputs] + ([LOSS] if model.has_loss else [])
    weights = {p.name for p in layout.parameters}
    alive = lives(kernels, kept, weights)
    buffers, first_end = place(alive, base)
    stride = aligned(first_end - base)
    partial = base + options.minibatches_in_flight * stride
    end = partial + _partial_bytes(layout, options)
    system = options.system
    if end > system.sram_bytes:
        room = system.sram_bytes - base - (end - partial)
        fits = _largest_batch(alive, room, batch, options.minibatches_in_flight)
        raise _too_large(_largest_layer(layout, alive), fits, end, options.mode, system)
    return Placed(layout, store, tuple(buffers), stride, partial, end)


def _partial_bytes(layout: Layout, options: CompileOptions) -> int:
    """One group's gradients of a later minibatch, before they are added to the first one's."""
    if options.minibatches_in_flight == 1 or options.run_mode is not RunMode.TRAIN:
        return 0
    return max((group.nbytes for group in layout.groups), default=0)


def _store(layout: Layout, updates: Mapping[str, Optimizer], run_mode: RunMode) -> Store:
    region = layout.region_bytes
    if run_mode is not RunMode.TRAIN:
        return Store(region, 0, None, ())
    names = dict.fromkeys(slot for optimizer in updates.values() for slot in optimizer.slots)
    slots = tuple((name, (2 + index) * region) for index, name in enumerate(names))
    return Store((2 + len(slots)) * region, 0, region, slots)


def _with_slots(layout: Layout) -> tuple[Layout, int]:
    """Two weight slots at the arena's front, each as large as the largest group that it takes."""
    sizes = [
        max((g.nbytes for g in layout.groups if g.index % 2 == slot), default=0) for slot in (0, 1)
    ]
    groups = tuple(
        msgspec.structs.replace(g, slot_offset_bytes=sizes[0] if g.index % 2 else 0)
        for g in layout.groups
    )
    return replace(layout, groups=groups), sum(sizes)


REMEDIES = {
    ExecutionMode.PIPELINED: "use weight streaming (csrun_wse with python-ws)",
    ExecutionMode.WEIGHT_STREAMING: "give the layer fewer units, or use a larger system",
}


def _too_large(
    largest: tuple[str, int], fits: int, arena: int, mode: ExecutionMode, system: System
) -> CompileError:
    """`fits` is the largest batch that would fit, 0 when none does."""
    (layer, nbytes), remedy = largest, f"lower batch_size to {fits}" if fits else REMEDIES[mode]
    return CompileError(
        f"layer {layer} needs {nbytes:,} bytes of {arena:,} on the wafer, "
        f"{system.name} has {system.sram_bytes:,}: {remedy}"
    )


def _largest_layer(layout: Layout, alive: Sequence[Life]) -> tuple[str, int]:
    """The layer whose weights, or one of whose buffers, are largest, and their size."""
    layer_of = {
        array.name: kernel.layer
        for kernel in chain(*layout.forward, *layout.backward)
        for array in (*kernel.writes, *kernel.scratch)
    }
    sizes = [(layer_of.get(life.array.name, "model"), life.nbytes) for life in alive]
    for layer in layout.layers:
        own = [p for p in layout.parameters if p.layer == layer.name]
        sizes.append((layer.name, sum(map(nbytes_of_parameter, own))))
    return max(sizes, key=lambda size: size[1])


def _largest_batch(alive: Sequence[Life], room: int, batch: int, minibatches: int) -> int:
    """The largest batch below `batch` whose buffers take at most `room` bytes; 0 when none does."""
    rows = batch // minibatches

    def nbytes(fewer: int) -> int:
        scaled = [replace(life, array=_with_rows(life.array, rows, fewer)) for life in alive]
        return minibatches * aligned(place(scaled, 0)[1])

    fitting = bisect_right(range(1, rows), room, key=nbytes)
    return fitting * minibatches


def _with_rows(array: Array, rows: int, fewer: int) -> Array:
    """The array with another batch size along the axis of the batch, if it has one."""
    if rows not in array.shape:
        return array
    axis = array.shape.index(rows)
    return replace(array, shape=(*array.shape[:axis], fewer, *array.shape[axis + 1 :]))
