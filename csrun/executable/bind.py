"""From a plan and memory to the arrays that a program works on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, inf, prod

import numpy as np
import numpy.typing as npt

from csrun.executable.plan import Plan

ALIGNMENT_BYTES = 64


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize


def aligned(nbytes: int) -> int:
    """Rounded up to the alignment of arrays."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]
Batch = tuple[Array, ...]


@dataclass(slots=True)
class Step:
    """What a program may know of the step it computes; one object, changed in place.

    index: the global step, from 0; it keys schedules and random draws.
    first_sample: index within the global batch of this minibatch's first sample.
    rows: valid samples of the *global* batch; the others, behind them, are padding.
    counts: labels of the global batch that count, for each range of each input.
    clip: what an update multiplies its gradients by, so that all together are not too long.
    """

    index: int = 0
    first_sample: int = 0
    rows: int = 0
    counts: tuple[int, ...] = ()
    clip: float = 1.0

    @property
    def valid(self) -> int:
        """Valid samples from this minibatch's first one on."""
        return max(0, self.rows - self.first_sample)


@dataclass(frozen=True, slots=True)
class WaferProgram:
    """The wafer's part of a bound program: a function a visit of the plan, in its order."""

    visits: list[Callable[[Batch, Step], None]]


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """The learning algorithm's part of a bound program, a function a group.

    squares: where gradients are clipped, the sums of squares of each of a group's.
    """

    update: list[Callable[[Step], None]]
    squares: list[Callable[[], list[float]]] = field(default_factory=list)


def view(memory: Bytes, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
    """An array over `memory` (uint8[n]) at a byte offset; no copy."""
    return memory[offset : offset + nbytes_of(shape, dtype)].view(dtype).reshape(shape)


def flat_views(plan: Plan, store: Bytes) -> dict[str, Array]:
    """The store's flat ranges by name: `weights/0`, `gradients/0`, `momentum/0`, … for each group.

    Shapes: each [group.nbytes / itemsize], of the plan's precision
    """
    regions = [("weights", plan.store.weights_offset), *plan.store.slots]
    if plan.store.gradients_offset is not None:
        regions.append(("gradients", plan.store.gradients_offset))
    itemsize = np.dtype(plan.precision).itemsize
    return {
        f"{name}/{g.index}": view(
            store, base + g.offset_bytes, (g.nbytes // itemsize,), plan.precision
        )
        for name, base in regions
        for g in plan.groups
    }


def state_views(plan: Plan, store: Bytes) -> dict[str, Array]:
    """What a checkpoint holds: parameters by name, optimizer slots as `slot/parameter`."""
    return {name: view(store, *place) for name, place in state_layout(plan).items()}


def state_layout(plan: Plan) -> dict[str, tuple[int, tuple[int, ...], str]]:
    """Where in the store each tensor of the state lies: byte offset, shape and type."""
    regions = [("", plan.store.weights_offset)]
    regions += [(f"{slot}/", offset) for slot, offset in plan.store.slots]
    return {
        f"{prefix}{p.name}": (base + p.offset_bytes, p.shape, p.dtype)
        for prefix, base in regions
        for p in plan.parameters
    }


def wafer_views(plan: Plan, arena: Bytes, store: Bytes, minibatch: int = 0) -> dict[str, Array]:
    """What the wafer's program works on: buffers by name, weights by parameter name, gradients as
    `gradient/<parameter>`.

    In weight streaming the weights are views of the arena's slots, else of the store. The gradients
    of all minibatches but the first are views of the arena's partial gradients.
    """
    shift = minibatch * plan.minibatch_stride_bytes
    views = {b.name: view(arena, b.offset_bytes + shift, b.shape, b.dtype) for b in plan.buffers}
    group_of = {layer.name: plan.groups[layer.group] for layer in plan.layers}
    for p in plan.parameters:
        group = group_of[p.layer]
        if group.slot_offset_bytes is None:
            weights = view(store, plan.store.weights_offset + p.offset_bytes, p.shape, p.dtype)
        else:
            offset = group.slot_offset_bytes + p.offset_bytes - group.offset_bytes
            weights = view(arena, offset, p.shape, p.dtype)
        views[p.name] = weights
        if plan.store.gradients_offset is not None:
            base, memory = plan.store.gradients_offset + p.offset_bytes, store
            if minibatch:
                base = plan.partial_offset_bytes + p.offset_bytes - group.offset_bytes
                memory = arena
            views[f"gradient/{p.name}"] = view(memory, base, p.shape, p.dtype)
    return views


def partial_gradients(plan: Plan, arena: Bytes) -> list[Array]:
    """Where each group's gradients of a later minibatch are, flat; the same place for all groups.

    Shapes: each [group.nbytes / itemsize], of the plan's precision
    """
    itemsize = np.dtype(plan.precision).itemsize
    return [
        view(arena, plan.partial_offset_bytes, (g.nbytes // itemsize,), plan.precision)
        for g in plan.groups
    ]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a program is given besides memory: the run's seed, for random draws."""

    seed: int


BindWafer = Callable[[Mapping[str, Array], Runtime], WaferProgram]
BindUpdate = Callable[[Mapping[str, Array], Runtime], UpdateProgram]


def tiles(start: int, stop: int, length: int, *arrays: Array) -> list[tuple[Array, ...]]:
    """Views of the elements start..stop of several flat arrays, `length` at a time.

    Shapes: each array [n], n >= stop -> tuples of views [length], the last ones shorter
    """
    pieces = [(at, min(at + length, stop)) for at in range(start, stop, length)]
    return [tuple(array[first:last] for array in arrays) for first, last in pieces]


SQUARES = 4096  # elements squared at a time, in float64


def sums_of_squares(arrays: Sequence[Array]) -> Callable[[], list[float]]:
    """A function that gives, for each array, the sum of its values' squares, in float64.

    Shapes: each array [n]; one array's sum does not depend on what others there are.
    """
    scratch = np.empty(SQUARES, np.float64)
    pieces = [tiles(0, len(array), SQUARES, array) for array in arrays]

    def squares(part: Array) -> float:
        product = scratch[: len(part)]
        np.multiply(part, part, out=product, dtype=np.float64)
        return float(np.add.reduce(product))

    return lambda: [total(squares(part) for (part,) in parts) for parts in pieces]


def total(numbers: Iterable[float]) -> float:
    """The sum, rounded once: the same in whatever order the numbers come."""
    try:
        return fsum(numbers)
    except OverflowError:
        return inf


def row_tiles(
    rows: int, tile: int, arrays: Sequence[Array], scratch: Sequence[Array]
) -> list[tuple[slice | Array, ...]]:
    """The pieces of a loop over rows: where they are, their views of arrays and of scratch arrays.

    Shapes: arrays [rows, ...], scratch [tile, ...] -> views [tile, ...], the last ones shorter
    """
    pieces = [slice(at, min(at + tile, rows)) for at in range(0, rows, tile)]
    return [
        (piece, *(a[piece] for a in arrays), *(s[: piece.stop - piece.start] for s in scratch))
        for piece in pieces
    ]


def store_of(plan: Plan, arena: Bytes, store: Bytes | None) -> Bytes:
    """The store's bytes: the arena's front when the plan says so, else the given block.

    Shapes: arena uint8[plan.arena_bytes] -> uint8[plan.store.nbytes]
    """
    if plan.store_in_arena:
        return arena[: plan.store.nbytes]
    if store is None:
        raise ValueError("a plan without the store in its arena needs a store")
    return store
