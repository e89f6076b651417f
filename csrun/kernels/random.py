"""Counter-based randomness: a draw depends only on its counter and key.

Philox4x32-10 over arrays: a counter of four 32-bit words and a key of two give four random words. A
draw's counter is (block of columns, stream, sample, step) and its key the run's seed, so values do
not depend on how a batch is split. With gradient accumulation each batch of a step has different
counters.

Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 4
"""

import numpy as np
import numpy.typing as npt

from csrun.executable.arrays import Array
from csrun.executable.bind import StepState

Words = npt.NDArray[np.uint64]

ROUNDS = 10
COUNTER_BITS = 128  # of a counter's words
COLUMNS_PER_BLOCK = 8  # values of 16 bits in them
LEVELS = 1 << 16  # a rate is rounded to a multiple of 1 / LEVELS
NUMBERS_PER_BLOCK = 4  # values of 32 bits in them
UNIFORM_BITS = 23  # of a uniform number: a float32 holds k + 0.5 exactly
WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(WORD)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.array(MULTIPLIERS, np.uint64).reshape(2, 1, 1)
_WEYL = np.array(WEYL, np.uint64).reshape(2, 1, 1)


def round_keys(seed: int) -> list[Words]:
    """Return the keys of the rounds, from a seed of up to 64 bits.

    Shapes: [2, 1, 1] each
    """
    key = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64).reshape(2, 1, 1)
    return [(key + np.uint64(number) * _WEYL) & _WORD for number in range(ROUNDS)]


def philox(even: Words, odd: Words, product: Words, keys: list[Words]) -> None:
    """Philox words [2, R, C] from counters, in place.

    even holds words 0 and 2 of the counters, odd words 1 and 3; product is scratch.

    Shapes: even, odd, product [2, R, C]
    """
    swapped = product[::-1]
    for key in keys:
        np.multiply(even, _MULTIPLIERS, out=product)
        np.right_shift(swapped, _SHIFT, out=even)
        np.bitwise_xor(even, odd, out=even)
        np.bitwise_xor(even, key, out=even)
        np.bitwise_and(swapped, _WORD, out=odd)


def blocks_of(columns: int) -> int:
    """Return the number of counters of a row with this many columns."""
    return -(-columns // COLUMNS_PER_BLOCK)


def threshold_of(rate: float) -> int:
    """Return the threshold below which a draw falls with probability `rate`, to 16 bits."""
    return min(round(rate * LEVELS), LEVELS - 1)


class SampleDraw:
    """Draws the Philox words of one operator in a step, for each row of a batch.

    Shapes: words uint64 [3, 2, R, counters of a row], scratch
    """

    def __init__(self, words: Words, stream: int, keys: list[Words]) -> None:
        self._even, self._odd, self._product = words
        _, rows, blocks = self._even.shape
        self._blocks = np.arange(blocks, dtype=np.uint64)
        self._rows = np.arange(rows, dtype=np.uint64).reshape(rows, 1)
        self._stream, self._keys = stream, keys

    def _draw(self, step: StepState) -> None:
        """Draw words 0 and 1 of each counter into `_even[0]`, and words 2 and 3 into `_even[1]`."""
        even, odd = self._even, self._odd
        even[0] = self._blocks
        self._samples(step, even[1])
        odd[0] = self._stream
        odd[1] = step.draw
        philox(even, odd, self._product, self._keys)
        np.left_shift(odd, _SHIFT, out=odd)
        np.bitwise_or(even, odd, out=even)

    def _samples(self, step: StepState, out: Words) -> None:
        """Write the sample index of each row; a padding row has the values of the row it copies."""
        np.add(self._rows, step.first_sample, out=out)
        if step.valid < len(self._rows):
            np.remainder(out, step.rows, out=out)


class MaskDraw(SampleDraw):
    """Draws one operator's mask of a step: true where a value is kept.

    Shapes: mask [R, N] bool; words uint64 [3, 2, R, blocks_of(N)], scratch
    """

    def __init__(
        self, mask: Array, words: Words, threshold: int, stream: int, keys: list[Words]
    ) -> None:
        super().__init__(words, stream, keys)
        self._threshold = threshold
        levels = self._even.view(np.uint16)  # [2, R, 4 * blocks]
        split = levels.shape[2]
        parts = (mask[:, :split], mask[:, split:])
        self._halves = [(levels[half, :, : part.shape[1]], part) for half, part in enumerate(parts)]

    def __call__(self, step: StepState) -> None:
        self._draw(step)
        for levels, mask in self._halves:
            np.greater_equal(levels, self._threshold, out=mask)


class FixedMaskDraw(MaskDraw):
    """Draws a mask without samples: the same in all minibatches of a step."""

    def _samples(self, step: StepState, out: Words) -> None:
        out.fill(0)


class UniformDraw(SampleDraw):
    """Draws uniform float32 numbers in (0, 1), odd multiples of 2^-24, each from 23 bits.

    Shapes: out [R, N]; words uint64 [3, 2, R, N / 4 rounded up], scratch
    """

    def __init__(self, out: Array, words: Words, stream: int, keys: list[Words]) -> None:
        super().__init__(words, stream, keys)
        self._bits = self._even.view(np.uint32)  # [2, R, 2 * blocks]
        split = self._bits.shape[2]
        parts = (out[:, :split], out[:, split:])
        self._halves = [
            (self._bits[half, :, : part.shape[1]], part) for half, part in enumerate(parts)
        ]

    def __call__(self, step: StepState) -> None:
        self._draw(step)
        np.right_shift(self._bits, 32 - UNIFORM_BITS, out=self._bits)
        for bits, numbers in self._halves:
            np.add(bits, 0.5, out=numbers, casting="unsafe")
            np.multiply(numbers, np.float32(2.0**-UNIFORM_BITS), out=numbers)


class FixedUniformDraw(UniformDraw):
    """Draws numbers without samples: the same in all minibatches of a step."""

    def _samples(self, step: StepState, out: Words) -> None:
        out.fill(0)


class RunDraw:
    """Draws runs of an operator's mask, a few at a time; each run has separate counters.

    `scale` compensates for the dropped values.

    Shapes: mask [R, N] bool; words uint64 [3, 2, R, blocks_of(N)], scratch
    """

    def __init__(
        self, mask: Array, words: Words, rate: float, stream: int, keys: list[Words]
    ) -> None:
        self._mask, self._words, self._stream, self._keys = mask, words, stream, keys
        self._blocks = np.arange(words.shape[3], dtype=np.uint64)
        self._threshold, self.scale = threshold_of(rate), 1 / (1 - rate)
        self._step = StepState()

    def of(self, step: StepState) -> "RunDraw":
        """Return the same draw for another step."""
        self._step = step
        return self

    def __call__(self, sample: int, run: int, count: int) -> Array:
        """Return the masks [count, N] of the runs run, run + 1, … of a sample: true where a value
        is kept.

        Shapes: -> [count, N] bool
        """
        step, number = self._step, self._step.first_sample + sample
        if sample >= step.valid:  # a padding row has the mask of the row it copies
            number %= step.rows
        even, odd, product = self._words[:, :, :count]
        first = np.arange(run, run + count, dtype=np.uint64) * np.uint64(len(self._blocks))
        np.add(first[:, None], self._blocks, out=even[0])
        even[1] = number
        odd[0] = self._stream
        odd[1] = step.draw
        philox(even, odd, product, self._keys)
        np.left_shift(odd, _SHIFT, out=odd)
        np.bitwise_or(even, odd, out=even)
        mask, levels = self._mask[:count], even.view(np.uint16)
        split = levels.shape[2]
        for half, part in enumerate((mask[:, :split], mask[:, split:])):
            np.greater_equal(levels[half, :, : part.shape[1]], self._threshold, out=part)
        return mask
