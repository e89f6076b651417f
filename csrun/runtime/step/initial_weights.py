"""The first state of a training: weights drawn from the run's seed, optimizer state zero."""

import hashlib
from collections.abc import Mapping

import numpy as np

from csrun.executable import Initializer, InitializerKind, Plan
from csrun.executable.bind import Array

CHUNK = 1 << 20  # values drawn at once: bounds the extra memory


def initialize(plan: Plan, state: Mapping[str, Array], seed: int) -> None:
    """Write initial values into every tensor of `state`, as the plan's initializers say.

    A parameter's values depend on the seed, its name and its shape, and on nothing else.
    """
    for array in state.values():
        array[...] = 0
    for parameter in plan.parameters:
        _fill(state[parameter.name].reshape(-1), parameter.initializer, seed, parameter.name)


def _fill(flat: Array, initializer: Initializer, seed: int, name: str) -> None:
    generator = _generator(seed, name)
    for start in range(0, len(flat), CHUNK):
        part = flat[start : start + CHUNK]
        part[...] = _draw(generator, initializer, len(part))


def _generator(seed: int, name: str) -> np.random.Generator:
    """A counter-based generator of its own for each (seed, parameter).

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox)
    """
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _draw(generator: np.random.Generator, initializer: Initializer, count: int) -> Array:
    kind, scale = initializer.kind, initializer.scale
    if kind is InitializerKind.UNIFORM:
        return generator.uniform(-scale, scale, count)
    if kind is InitializerKind.NORMAL:
        return generator.normal(0.0, scale, count)
    return np.full(count, 1.0 if kind is InitializerKind.ONES else 0.0)
