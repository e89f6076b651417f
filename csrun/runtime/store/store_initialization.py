"""Initial values of weights and optimizer state, drawn in the process with the store by several
threads.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod

import numpy as np
import numpy.typing as npt

from csrun.executable import Initializer, InitializerKind, Plan, tensors_of
from csrun.executable.arrays import Array

CHUNK = 1 << 16  # values drawn at once: they stay in the cache until they are rounded
AHEAD = 2  # limit of tensors in memory, besides those being drawn, before the first is written back

Drawn = Callable[[str], None]
Fill = tuple[str, Callable[[], None]]  # of a tensor, by its name


def initialize(
    plan: Plan,
    state: Mapping[str, Array],
    seed: int,
    threads: int = 1,
    is_fresh: bool = False,
    drawn: Drawn = lambda name: None,
) -> None:
    """Write initial values into every tensor of `state`, all or a part of the plan's.

    A parameter's values depend only on the seed, its name and its shape.

    is_fresh: all of it is zero already, and its pages need not be touched.
    drawn: called with each tensor that is written, one at a time.
    """
    pending: deque[tuple[str, Future[None]]] = deque()

    def take(most: int) -> None:
        while len(pending) > most:
            name, filled = pending.popleft()
            filled.result()
            drawn(name)

    with ThreadPoolExecutor(threads, "first values") as pool:
        for name, fill in _fills(plan, state, seed, is_fresh):
            pending.append((name, pool.submit(fill)))
            # Bounded, because values of a store on disk are in memory until they are written back.
            take(threads + AHEAD)
        take(0)


def _fills(plan: Plan, state: Mapping[str, Array], seed: int, is_fresh: bool) -> list[Fill]:
    """Return the functions that fill the tensors, large ones first, so that no thread is left with
    one at the end.
    """

    def fill_of(name: str, initializer: Initializer) -> Fill:
        return name, lambda: _fill(state[name], initializer, seed, name)

    def constant_of(name: str, value: float) -> Fill:
        return name, lambda: state[name].__setitem__(..., value)

    own = (p for p in tensors_of(plan) if p.name in state)
    parameters = sorted(own, key=lambda p: -prod(p.shape))
    found = [
        fill_of(p.name, p.initializer)
        for p in parameters
        if not (is_fresh and p.initializer.kind is InitializerKind.ZEROS)
    ]
    found += [
        constant_of(f"{slot.name}/{p.name}", slot.first_value)
        for slot in plan.store.slots
        for p in parameters
        if not (p.is_state or (is_fresh and slot.first_value == 0))
    ]
    return found


def _fill(array: Array, initializer: Initializer, seed: int, name: str) -> None:
    """Fill a tensor row by row, transposed or not."""
    generator = _generator(seed, name, initializer.kind)
    drawn = np.empty(min(CHUNK, array.size), np.float32)
    rows = array.reshape(1, -1) if array.flags.c_contiguous else array
    for row in rows:
        for start in range(0, len(row), CHUNK):
            part = row[start : start + CHUNK]
            _draw(generator, initializer, drawn[: len(part)], part)


def _generator(seed: int, name: str, kind: InitializerKind) -> np.random.Generator:
    """Return a separate generator for each (seed, parameter); normal values use NumPy's fastest
    one.

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox); Doty-Humphrey,
    PractRand (SFC64)
    """
    # blake2b, because Python's hash of a string differs between processes.
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    key = int.from_bytes(digest, "little")
    is_normal = kind is InitializerKind.NORMAL
    return np.random.Generator(np.random.SFC64(key) if is_normal else np.random.Philox(key=key))


def _draw(
    generator: np.random.Generator,
    initializer: Initializer,
    scratch: npt.NDArray[np.float32],
    out: Array,
) -> None:
    """Draw the next values; normal ones as float32 in any precision, from half as many random bits.

    Shapes: scratch, out [n]
    """
    kind, scale = initializer.kind, initializer.scale
    if kind is InitializerKind.UNIFORM:
        out[...] = generator.uniform(-scale, scale, len(out))
    elif kind is InitializerKind.NORMAL:
        generator.standard_normal(dtype=np.float32, out=scratch)
        np.multiply(scratch, np.float32(scale), out=out)
    else:
        out[...] = kind is InitializerKind.ONES
