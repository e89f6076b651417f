"""Machine code of random masks."""

from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import FIRST, LAST, LibraryFunction
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.emit.llvm.philox import COUNTERS, SEED, Counters, draw_words, round_keys
from csrun.compiler.kernels.dropout import DropoutMask
from csrun.kernels.random import blocks_of, threshold_of

OF_STEP = ("step.draw", "step.first_sample", "step.rows", "step.valid")
LEVELS = 4  # of 16 bits each, in 64 bits
#: Counters of a piece of a sample's row: threads share longer rows.
PIECE = 512


def mask_code(kernel: DropoutMask, name: str) -> KernelCode | None:
    """Return machine code over pieces of the mask's rows; None for a mask that is not
    contiguous.
    """
    if not kernel.mask.is_contiguous:
        return None
    writer = _MaskWriter(kernel)
    writer.write()
    return writer.function.finished(name, writer.samples * writer.pieces)


class _MaskWriter:
    """Writes the function: counters, words and comparisons of each piece of a row.

    In a row of N values with B counters, the first 4 B values are from words 0 and 1, the others
    from words 2 and 3.
    """

    def __init__(self, kernel: DropoutMask) -> None:
        self.function = LibraryFunction((kernel.mask,), (*SEED, *OF_STEP, str(kernel.stream)))
        self.samples, self._columns = kernel.matrix.shape
        self._kernel = kernel
        self._blocks = blocks_of(self._columns)
        self.pieces = -(-self._blocks // PIECE)
        seed = [self.function.integer(text) for text in SEED]
        self._keys = round_keys(self.function.code, seed)
        self._draw = self.function.integer("step.draw")

    def write(self) -> None:
        """Write the loop over pieces."""
        code = self.function.code
        full = self._blocks - self._blocks % COUNTERS
        whole = self._columns == 2 * LEVELS * self._blocks
        if full == self._blocks and not whole:
            full -= COUNTERS
        with code.loop(FIRST, LAST) as number:
            sample = code.op("udiv", number, index(self.pieces))
            piece = code.op("sub", number, code.op("mul", sample, index(self.pieces)))
            start = code.op("mul", sample, index(self._columns))
            place = code.offset(self.function.pointers[0], "bool", start)
            drawn = self._sample(sample)
            first = code.op("mul", piece, index(PIECE))
            last = code.op("add", first, index(PIECE))
            is_end = code.compare("sge", last, index(self._blocks))
            with code.loop(first, code.select(is_end, index(full), last), COUNTERS) as block:
                self._write_blocks(place, drawn, block, 0)
            if full < self._blocks:
                with code.when(is_end):
                    self._write_blocks(place, drawn, index(full), self._blocks - full)

    def _sample(self, row: LaneValue) -> LaneValue:
        """Return the sample index of a row; a padding row has the mask of the row it copies."""
        code, number = self.function.code, self.function.integer
        if not self._kernel.rows:
            return index(0)
        found = code.op("add", row, number("step.first_sample"))
        rows = number("step.rows")
        is_none = code.compare("eq", rows, index(0))
        copied = code.op("urem", found, code.select(is_none, index(1), rows))
        has_padding = code.compare("ult", number("step.valid"), index(self.samples))
        return code.select(has_padding, copied, found)

    def _write_blocks(self, place: str, sample: LaneValue, block: LaneValue, last: int) -> None:
        """Write the values of a vector of counters, or of the last counters of a row."""
        code, kind = self.function.code, Kind("int64", COUNTERS)
        numbers = ", ".join(f"i64 {n}" for n in range(COUNTERS))
        lanes = LaneValue(f"<{numbers}>", kind)
        counters = Counters(
            code.op("add", code.splat(block, COUNTERS), lanes),
            code.splat(self.function.integer(str(self._kernel.stream)), COUNTERS),
            code.splat(sample, COUNTERS),
            code.splat(self._draw, COUNTERS),
        )
        halves = draw_words(code, counters, self._keys)
        split = LEVELS * self._blocks
        widths = [min(self._columns, split), max(self._columns - split, 0)]
        at = code.op("mul", block, index(LEVELS))
        for start, width, words in zip((0, split), widths, halves, strict=True):
            count = COUNTERS * LEVELS
            levels = Kind("int16", count)
            found = code.make(levels, f"bitcast {words} to {levels.ir}")
            threshold = code.constant(threshold_of(self._kernel.rate), levels)
            kept = code.compare("uge", found, threshold)
            values = code.convert("zext", kept, "int8")
            target = code.offset(place, "bool", code.op("add", at, index(start)))
            left = max(0, min(width - LEVELS * (self._blocks - last), count))
            code.store(values, target, code.first_lanes(left, count) if last else None)
