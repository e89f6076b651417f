"""Machine code of random masks and numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.philox import (
    COUNTERS,
    SEED,
    Counters,
    draw_words,
    round_keys,
)
from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import FIRST, LAST, LibraryFunction
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.dropout import DropoutMask, Uniform
from csrun.kernels.random import (
    COUNTER_BITS,
    UNIFORM_BITS,
    threshold_of,
)

OF_STEP = ("step.draw", "step.first_sample", "step.rows", "step.valid")
#: Counters of a piece of a sample's row: threads share longer rows.
PIECE = 512


def mask_code(kernel: DropoutMask, name: str) -> KernelCode | None:
    """Return machine code over pieces of the mask's rows; None for a mask that is not
    contiguous.
    """
    threshold = threshold_of(kernel.rate)

    def kept(code: Code, levels: LaneValue) -> LaneValue:
        return code.compare("uge", levels, code.constant(threshold, levels.kind))

    return _draw_code(kernel, kernel.mask, _Format("int16", 16, kept), name)


def uniform_code(kernel: Uniform, name: str) -> KernelCode | None:
    """Return machine code over pieces of the numbers' rows; None for an array that is not
    contiguous.
    """
    return _draw_code(kernel, kernel.out, _Format("int32", 32, _uniform), name)


def _uniform(code: Code, bits: LaneValue) -> LaneValue:
    """Return (k + 0.5) / 2^23 of the high 23 bits k, without rounding."""
    high = code.op("lshr", bits, code.constant(32 - UNIFORM_BITS, bits.kind))
    number = code.convert("uitofp", high, "float32")
    middle = code.op("fadd", number, code.constant(0.5, number.kind))
    return code.op("fmul", middle, code.constant(2.0**-UNIFORM_BITS, number.kind))


@dataclass(frozen=True)
class _Format:
    """Values of a draw, each computed from `bits` bits that are read as `dtype`."""

    dtype: str
    bits: int
    value: Callable[[Code, LaneValue], LaneValue]

    @property
    def per_half(self) -> int:
        """Values in one half of a counter's words."""
        return COUNTER_BITS // 2 // self.bits


def _draw_code(
    kernel: DropoutMask | Uniform, out: Array, form: _Format, name: str
) -> KernelCode | None:
    if not out.is_contiguous:
        return None
    writer = _DrawWriter(kernel, out, form)
    writer.write()
    return writer.function.finished(name, writer.samples * writer.pieces)


class _DrawWriter:
    """Writes the function: counters, words and values of each piece of a row.

    With P values per half, in a row of N values with B counters, the first P B values are from
    words 0 and 1, the others from words 2 and 3.
    """

    def __init__(self, kernel: DropoutMask | Uniform, out: Array, form: _Format) -> None:
        self.function = LibraryFunction((out,), (*SEED, *OF_STEP, str(kernel.stream)))
        self.samples, self._columns = kernel.matrix.shape
        self._kernel, self._dtype, self._form = kernel, out.dtype, form
        self._blocks = -(-self._columns // (2 * form.per_half))
        self.pieces = -(-self._blocks // PIECE)
        seed = [self.function.integer(text) for text in SEED]
        self._keys = round_keys(self.function.code, seed)
        self._draw = self.function.integer("step.draw")

    def write(self) -> None:
        """Write the loop over pieces."""
        code = self.function.code
        full = self._full_blocks
        with code.loop(FIRST, LAST) as number:
            sample = code.op("udiv", number, index(self.pieces))
            piece = code.op("sub", number, code.op("mul", sample, index(self.pieces)))
            start = code.op("mul", sample, index(self._columns))
            place = code.offset(self.function.pointers[0], self._dtype, start)
            drawn = self._sample(sample)
            first = code.op("mul", piece, index(PIECE))
            last = code.op("add", first, index(PIECE))
            is_end = code.compare("sge", last, index(self._blocks))
            with code.loop(first, code.call("smin", last, index(full)), COUNTERS) as block:
                self._write_blocks(place, drawn, block, 0)
            if full < self._blocks:
                with code.when(is_end):
                    for ragged in range(full, self._blocks, COUNTERS):
                        self._write_blocks(place, drawn, index(ragged), self._blocks - ragged)

    @property
    def _full_blocks(self) -> int:
        """Counters in vectors of which all values are in the row; its second half is shorter."""
        shorter = self._columns - self._form.per_half * self._blocks
        return max(shorter, 0) // (COUNTERS * self._form.per_half) * COUNTERS

    def _sample(self, row: LaneValue) -> LaneValue:
        """Return the sample index of a row; a padding row has the values of the row it copies."""
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
        form, per_half = self._form, self._form.per_half
        split = per_half * self._blocks
        widths = [min(self._columns, split), max(self._columns - split, 0)]
        at = code.op("mul", block, index(per_half))
        for start, width, words in zip((0, split), widths, halves, strict=True):
            count = COUNTERS * per_half
            drawn = Kind(form.dtype, count)
            values = form.value(code, code.make(drawn, f"bitcast {words} to {drawn.ir}"))
            target = code.offset(place, self._dtype, code.op("add", at, index(start)))
            left = max(0, min(width - per_half * (self._blocks - last), count))
            code.store(values, target, code.first_lanes(left, count) if last else None)
