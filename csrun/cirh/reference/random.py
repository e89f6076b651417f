"""Reference implementations of random masks: Philox on Python's integers, one counter at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from csrun.cirh.ops.base import Properties, integer, number
from csrun.cirh.ops.random import MaskedScaleOp
from csrun.cirh.reference.table import Array, References

Words = tuple[int, int, int, int]
WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Draw:
    """What a mask depends on besides its operator: the run's seed, the step, the first sample."""

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


def dropout_mask(properties: Properties, shape: tuple[int, ...], draw: Draw) -> Array:
    """Eight columns a counter: its words in the order 0, 1, 2, 3, low half first, in two halves."""
    rows, columns = shape[0], int(np.prod(shape[1:]))
    blocks, stream = -(-columns // 8), integer(properties, "stream")
    key = draw.seed & WORD, draw.seed >> 32
    levels = np.empty((rows, 2, blocks, 4), np.int64)
    for row in range(rows):
        for block in range(blocks):
            words = philox((block, stream, draw.first_sample + row, draw.step), key)
            for place, word in enumerate(words):
                half, pair = divmod(place, 2)
                levels[row, half, block, 2 * pair : 2 * pair + 2] = word & 0xFFFF, word >> 16
    kept = levels.reshape(rows, -1)[:, :columns] >= round(number(properties, "rate") * 65536)
    return kept.reshape(shape)


def masked_scale(properties: Properties, x: Any, mask: Any) -> Any:
    """x where the mask is true, scaled."""
    return np.where(mask, x * x.dtype.type(number(properties, "scale")), x.dtype.type(0))


REFERENCES: References = {MaskedScaleOp: masked_scale}
