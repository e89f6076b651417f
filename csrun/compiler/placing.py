"""The arena: store or weight slots at its front, the buffers behind; and whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

import msgspec
import numpy as np

from csrun.compiler.errors import CompileError
from csrun.compiler.kernels.softmax_cross_entropy import LOSS
from csrun.compiler.layers import Layout, aligned
from csrun.compiler.matching import MatchedModel
from csrun.compiler.memory import lives, place
from csrun.compiler.options import CompileOptions
from csrun.compiler.updates import Optimizer
from csrun.executable import Buffer, Store
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


def place_model(
    model: MatchedModel, layout: Layout, options: CompileOptions, system: System, batch: int
) -> Placed:
    """Place store, slots and buffers.

    Raises: CompileError when the arena is larger than the system's memory.
    """
    store = _store(layout, model.updates, options.run_mode)
    if options.mode is ExecutionMode.WEIGHT_STREAMING:
        layout, base = _with_slots(layout)
    else:
        base = store.nbytes
    kernels = [*chain(*layout.forward), *chain(*layout.backward[::-1])]
    kept = [array for _, array in model.outputs] + ([LOSS] if model.has_loss else [])
    weights = {p.name for p in layout.parameters}
    buffers, first_end = place(lives(kernels, kept, weights), base)
    stride = aligned(first_end - base)
    partial = base + options.minibatches_in_flight * stride
    end = partial + _partial_bytes(layout, options)
    _require_room(end, end - partial + base, buffers, batch, system)
    return Placed(layout, store, tuple(buffers), stride, partial, end)


def _partial_bytes(layout: Layout, options: CompileOptions) -> int:
    """One group's gradients of a later minibatch, before they are added to the first one's."""
    if options.minibatches_in_flight == 1 or options.run_mode is not RunMode.TRAIN:
        return 0
    return max((group.nbytes for group in layout.groups), default=0)


def _store(layout: Layout, updates: Mapping[str, Optimizer], run_mode: RunMode) -> Store:
    region = layout.region_bytes
    if run_mode is not RunMode.TRAIN:
        return Store(region, region, 0, None, ())
    names = dict.fromkeys(slot for optimizer in updates.values() for slot in optimizer.slots)
    slots = tuple((name, (2 + index) * region) for index, name in enumerate(names))
    return Store((2 + len(slots)) * region, region, 0, region, slots)


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


def _require_room(
    arena: int, fixed: int, buffers: list[Buffer], batch: int, system: System
) -> None:
    if arena <= system.sram_bytes:
        return
    largest = max(buffers, key=_nbytes)
    per_sample = (arena - fixed) / batch
    fits = int((system.sram_bytes - fixed) // per_sample)
    remedy = f"lower batch_size to {fits}" if fits >= 1 else "use weight streaming (python-ws)"
    raise CompileError(
        f"layer {largest.name.rpartition('/')[0] or 'model'} needs {_nbytes(largest):,} bytes of "
        f"{arena:,} on the wafer, {system.name} has {system.sram_bytes:,}: {remedy}"
    )


def _nbytes(buffer: Buffer) -> int:
    return aligned(prod(buffer.shape) * np.dtype(buffer.dtype).itemsize)
