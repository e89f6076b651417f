"""Dropout of attention weights: the masks of `csrun.kernels.random.RunDraw`.

The masks of a block of queries are drawn in advance, one byte per weight.
"""

from collections.abc import Mapping

from csrun.compiler.emit.llvm.attention.attention_sizes import AttentionSizes, QueryBlock
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.philox import (
    COUNTERS,
    SEED,
    Counters,
    draw_words,
    round_keys,
)
from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import Matrix, padded, smaller, times
from csrun.compiler.kernels.attention import WeightDropout
from csrun.kernels.random import blocks_of, threshold_of

NUMBERS = (*SEED, "step.draw", "step.first_sample", "step.rows", "step.valid")
LEVELS = 4  # of 16 bits each, in 64 bits
COLUMNS = LEVELS * COUNTERS  # mask values from 64 bits of a vector of counters
WORDS = Kind("int64", COUNTERS)


def kept_stride(keys: int) -> int:
    """Return the bytes from one row of masks to the next; whole vectors of counters are drawn."""
    blocks = blocks_of(keys)
    return padded(LEVELS * blocks + COLUMNS * -(-blocks // COUNTERS))


class WeightDraw:
    """Draws which weights of a block are kept, and returns the mask of 16 of them at a time.

    scale: factor of kept weights.
    """

    def __init__(
        self,
        code: Code,
        sizes: AttentionSizes,
        dropout: WeightDropout,
        numbers: Mapping[str, LaneValue],
        kept: Matrix,
    ) -> None:
        self.scale = 1 / (1 - dropout.rate)
        self._code = code
        self._sizes = sizes
        self._dropout = dropout
        self._numbers = numbers
        self._kept = kept
        self._keys = round_keys(code, [numbers[text] for text in SEED])

    def keep_mask(self, number: LaneValue, at: LaneValue) -> LaneValue:
        """Return the mask of a row of the block: true where a weight is kept."""
        return self._kept.at(self._code, number).load(self._code, at, None)

    def write(self, pair: LaneValue, block: QueryBlock) -> None:
        """Draw the masks of a block.

        Each head of a sample has separate runs for its queries. The vectors of a row are drawn from
        its end: columns of the second half of the words follow those of the first half, and
        overwrite the excess of its last vector.
        """
        code, sizes = self._code, self._sizes
        sample = code.op("udiv", pair, index(sizes.heads))
        head = code.op("urem", pair, index(sizes.heads))
        sample, blocks = self._drawn_sample(sample), blocks_of(sizes.all_keys)
        run = code.op("add", times(code, head, sizes.queries), block.first)
        last = self._last_vector(block, blocks)
        with code.loop(index(0), block.count) as number:
            row = self._kept.at(code, number).pointer
            start = times(code, code.op("add", run, number), blocks)
            with code.loop(index(0), code.op("add", last, index(1))) as done:
                vector = code.op("sub", last, done)
                counter = code.op("add", start, times(code, vector, COUNTERS))
                place = code.offset(row, "int8", times(code, vector, COLUMNS))
                self._write_vector(sample, counter, place, LEVELS * blocks)

    def _last_vector(self, block: QueryBlock, blocks: int) -> LaneValue:
        """Return the index of the last vector with a column that the block sees."""
        code = self._code
        last = code.op("udiv", code.op("sub", block.seen, index(1)), index(COLUMNS))
        return smaller(code, last, index((blocks - 1) // COUNTERS))

    def _drawn_sample(self, sample: LaneValue) -> LaneValue:
        """Return the sample's index; a sample of padding has the mask of the one it copies."""
        code, numbers = self._code, self._numbers
        number = code.op("add", sample, numbers["step.first_sample"])
        rows = code.call("umax", numbers["step.rows"], index(1))
        is_padding = code.compare("uge", sample, numbers["step.valid"])
        return code.select(is_padding, code.op("urem", number, rows), number)

    def _write_vector(self, sample: LaneValue, counter: LaneValue, place: str, split: int) -> None:
        """Write the masks of a vector of counters; the second half of the words begins at column
        `split`.
        """
        code = self._code
        numbers = ", ".join(f"i64 {n}" for n in range(COUNTERS))
        counters = Counters(
            code.op("add", code.splat(counter, COUNTERS), LaneValue(f"<{numbers}>", WORDS)),
            code.splat(self._numbers[str(self._dropout.stream)], COUNTERS),
            code.splat(sample, COUNTERS),
            code.splat(self._numbers["step.draw"], COUNTERS),
        )
        halves = draw_words(code, counters, self._keys)
        levels = Kind("int16", COLUMNS)
        threshold = code.constant(threshold_of(self._dropout.rate), levels)
        for start, words in zip((0, split), halves, strict=True):
            found = code.make(levels, f"bitcast {words} to {levels.ir}")
            kept = code.compare("uge", found, threshold)
            code.store(kept, code.offset(place, "int8", index(start)))
