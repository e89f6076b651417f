"""Random masks and numbers by definition: Philox on Python's integers, one counter at a time."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.cirh.ops.base import Properties, integer, number

Words = tuple[int, int, int, int]
WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class MaskCounter:
    """Counter of random values: the run's seed, the step, the first sample."""

    seed: int = 0
    step: int = 0
    first_sample: int = 0


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10.

    Source: Salmon et al. 2011, section 4
    """
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = second >> 32 ^ b ^ k, second & WORD, first >> 32 ^ d ^ m, first & WORD
        k, m = k + 0x9E3779B9 & WORD, m + 0xBB67AE85 & WORD
    return a, b, c, d


def dropout_mask(
    properties: Properties, shape: tuple[int, ...], draw: MaskCounter
) -> npt.NDArray[Any]:
    """Return a mask; a counter gives eight columns: words 0, 1, 2, 3, each low half first, in two
    halves.
    """
    per_sample = integer(properties, "rows") if "rows" in properties else 1
    rows = shape[0] // per_sample if per_sample else 1
    first = draw.first_sample if per_sample else 0
    runs = integer(properties, "runs") if "runs" in properties else 1
    columns = math.prod(shape) // rows // runs
    blocks, stream = -(-columns // 8), integer(properties, "stream")
    key = draw.seed & WORD, draw.seed >> 32
    levels = np.empty((rows, runs, 2, blocks, 4), np.int64)
    for row, run, block in np.ndindex(rows, runs, blocks):
        words = philox((run * blocks + block, stream, first + row, draw.step), key)
        for place, word in enumerate(words):
            half, pair = divmod(place, 2)
            levels[row, run, half, block, 2 * pair : 2 * pair + 2] = word & 0xFFFF, word >> 16
    kept = levels.reshape(rows, runs, -1)[..., :columns]
    return (kept >= round(number(properties, "rate") * 65536)).reshape(shape)


def uniform(
    properties: Properties, shape: tuple[int, ...], draw: MaskCounter
) -> npt.NDArray[np.float32]:
    """Return uniform numbers; a counter gives four columns: words 0 and 1, and 2 and 3 in the
    second half.
    """
    per_sample = integer(properties, "rows") if "rows" in properties else 1
    rows = shape[0] // per_sample if per_sample else 1
    first = draw.first_sample if per_sample else 0
    columns = math.prod(shape) // rows
    blocks, stream = -(-columns // 4), integer(properties, "stream")
    key = draw.seed & WORD, draw.seed >> 32
    words = np.empty((rows, 2, blocks, 2), np.int64)
    for row, block in np.ndindex(rows, blocks):
        words[row, :, block] = np.reshape(
            philox((block, stream, first + row, draw.step), key), (2, 2)
        )
    numbers = ((words >> 9) + 0.5) / 2**23
    return numbers.reshape(rows, -1)[:, :columns].reshape(shape).astype(np.float32)
