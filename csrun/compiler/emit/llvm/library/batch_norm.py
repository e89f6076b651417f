"""Machine code of batch norm, forward and backward, channel by channel.

A channel's sum adds those of its samples in order; a sample's sum has 16 accumulators. A single sum
over all positions would lose precision. If no axis follows the channels, 16 channels are in the
lanes of a vector.
"""

from collections.abc import Callable, Mapping

from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    LibraryFunction,
    each_vector,
    vectors_of,
)
from csrun.compiler.emit.llvm.loops.row_sums import add_lanes
from csrun.compiler.emit.llvm.loops.scalars import call_function, convert
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.batch_norm import BatchNorm

Load = Callable[[str], LaneValue]
Store = Callable[[str, LaneValue], None]

#: Names of operands and results, in order.
FORWARD = ("x", "weight", "bias", "running_mean", "running_variance")
FORWARD_RESULTS = ("out", "mean", "rstd", "next_mean", "next_variance")
BACKWARD = ("grad", "x", "mean", "rstd", "weight")
BACKWARD_RESULTS = ("x_gradient", "weight_gradient", "bias_gradient")


def batch_norm_code(kernel: BatchNorm, name: str) -> KernelCode | None:
    """Return machine code over channels, or groups of 16; None if positions are not contiguous."""
    forward = kernel.phase is Phase.FORWARD
    keys = (*FORWARD, *FORWARD_RESULTS) if forward else (*BACKWARD, *BACKWARD_RESULTS)
    arrays = dict(zip(keys, (*kernel.operands, *kernel.results), strict=True))
    _, channels, places = kernel.results[0].shape
    axis = 1 if places == 1 else 2
    if any(len(a.shape) == 3 and a.strides[axis] != 1 for a in arrays.values()):
        return None
    writer = _ChannelWriter(kernel, arrays)
    with writer.function.code.loop(FIRST, LAST) as row:
        writer.begin(row)
        (writer.write_forward if forward else writer.write_backward)()
    rows = vectors_of(channels) if places == 1 else channels
    return writer.function.finished(name, rows)


class _ChannelWriter:
    """Writes the computation of a channel, or of 16 in the lanes of a vector.

    A channel's number is one lane, or all of them; `_spread` broadcasts it to values.
    """

    def __init__(self, kernel: BatchNorm, arrays: Mapping[str, Array]) -> None:
        self._kernel = kernel
        self._keys = tuple(arrays)
        self.function = LibraryFunction(tuple(arrays.values()), (kernel.end, *kernel.share))
        self._code = self.function.code
        self._samples, self._channels, self._places = kernel.results[0].shape
        dtype = kernel.results[0].dtype
        self._values = Kind(dtype, LANES)
        self._numbers = self._values if self._places == 1 else Kind(dtype)
        end = call_function(
            self._code, "minimum", [self.function.integer(kernel.end), index(self._samples)]
        )
        self._end = end
        counted = self._code.op("mul", end, index(self._places))
        self._count = self._as_number(call_function(self._code, "maximum", [counted, index(1)]))
        fewer = self._code.op("sub", counted, index(1))
        self._fewer = self._as_number(call_function(self._code, "maximum", [fewer, index(1)]))

    def begin(self, row: LaneValue) -> None:
        """Set the channels of a row of the job, and the mask of those that exist."""
        code = self._code
        self._channel, self._mask = row, None
        if self._places == 1:
            self._channel = code.op("mul", row, index(LANES))
            if self._channels % LANES:
                left = code.op("sub", index(self._channels), self._channel)
                lanes = code.splat(left, LANES)
                self._mask = code.compare("slt", code.lane_numbers(), lanes)

    def write_forward(self) -> None:
        """Write statistics, then all values."""
        count, fewer = self._count, self._fewer
        mean = self._op("divide", self._sum_of(lambda load: load("x")), count)
        own_mean = self._spread(mean)
        squares = self._sum_of(lambda load: self._square(self._op("subtract", load("x"), own_mean)))
        variance = self._op("divide", squares, count)
        _, eps = self._kernel.options
        root = self._op("sqrt", self._op("add", variance, self._constant(eps)))
        rstd = self._op("reciprocal", root)
        unbiased = self._op("multiply", variance, self._op("divide", count, fewer))
        self._store("mean", mean)
        self._store("rstd", rstd)
        self._go_on("running_mean", mean, "next_mean")
        self._go_on("running_variance", unbiased, "next_variance")
        scale = self._spread(self._op("multiply", rstd, self._load("weight")))
        bias = self._spread(self._load("bias"))

        def value(load: Load) -> LaneValue:
            centred = self._op("subtract", load("x"), own_mean)
            return self._op("add", self._op("multiply", centred, scale), bias)

        self._each("out", index(0), index(self._samples), value)

    def write_backward(self) -> None:
        """Write sums over valid rows, then the gradients; those of padding are 0."""
        rstd, mean = self._load("rstd"), self._spread(self._load("mean"))
        bias = self._sum_of(lambda load: load("grad"))
        products = self._sum_of(
            lambda load: self._op("multiply", load("grad"), self._op("subtract", load("x"), mean))
        )
        weight = self._op("multiply", products, rstd)
        self._store("bias_gradient", bias)
        self._store("weight_gradient", weight)
        less = self._spread(self._op("divide", bias, self._count))
        slope = self._spread(self._op("divide", self._op("multiply", weight, rstd), self._count))
        scale = self._spread(self._op("multiply", rstd, self._load("weight")))

        def value(load: Load) -> LaneValue:
            centred = self._op("subtract", load("x"), mean)
            lessened = self._op("add", self._op("multiply", centred, slope), less)
            return self._op("multiply", self._op("subtract", load("grad"), lessened), scale)

        zeros = self._code.constant(0, self._values)
        self._each("x_gradient", index(0), self._end, value)
        self._each("x_gradient", self._end, index(self._samples), lambda load: zeros)

    def _go_on(self, old: str, new: LaneValue, target: str) -> None:
        """Store share ((1 - momentum) old + momentum new)."""
        momentum, _ = self._kernel.options
        (text,) = self._kernel.share
        share = self.function.number(text)
        of_old, of_new = (
            self._as_number(self._code.op("fmul", share, self._code.constant(part, share.kind)))
            for part in (1 - momentum, momentum)
        )
        before = self._op("multiply", self._load(old), of_old)
        self._store(target, self._op("add", before, self._op("multiply", new, of_new)))

    # Values of a channel.

    def _sum_of(self, value: Callable[[Load], LaneValue]) -> LaneValue:
        """Return the sum over valid rows, one number per channel."""
        code, zero = self._code, self._code.constant(0, self._values)
        total, of_sample = code.slot(zero), code.slot(zero)

        def add(load: Load, _: Store, mask: LaneValue | None) -> None:
            old = code.get(of_sample, self._values)
            found = self._op("add", old, value(load))
            code.set(of_sample, found if mask is None else code.select(mask, found, old))

        def end_sample() -> None:
            both = [code.get(slot, self._values) for slot in (total, of_sample)]
            code.set(total, self._op("add", *both))
            code.set(of_sample, zero)

        self._walk(index(0), self._end, add, end_sample)
        found = code.get(total, self._values)
        return found if self._numbers.lanes > 1 else add_lanes(code, found)

    def _each(
        self, key: str, first: LaneValue, last: LaneValue, value: Callable[[Load], LaneValue]
    ) -> None:
        """Store the values of samples."""
        self._walk(first, last, lambda load, store, _: store(key, value(load)))

    def _walk(
        self,
        first: LaneValue,
        last: LaneValue,
        write: Callable[[Load, Store, LaneValue | None], None],
        end_sample: Callable[[], None] = lambda: None,
    ) -> None:
        """Write instructions for the vectors of some samples, and those after each sample."""
        code = self._code
        with code.loop(first, last) as sample:
            pointers = {
                key: self._address(key, sample)
                for key, array in zip(self._keys, self.function.parameters, strict=True)
                if len(array.shape) == 3
            }

            def at_place(at: LaneValue, mask: LaneValue | None) -> None:
                def place(key: str) -> str:
                    return code.offset(pointers[key], self._values.dtype, at)

                write(
                    lambda key: code.load(place(key), self._values, mask),
                    lambda key, value: code.store(value, place(key), mask),
                    mask,
                )

            if self._places == 1:
                at_place(index(0), self._mask)
            else:
                each_vector(code, self._places, at_place)
            end_sample()

    def _address(self, key: str, sample: LaneValue) -> str:
        number = self._keys.index(key)
        stride = self.function.parameters[number].strides[1]
        start = self._code.op("mul", self._channel, index(stride))
        pointer = self.function.row(number, sample)
        return self._code.offset(pointer, self._values.dtype, start)

    # Numbers of a channel.

    def _load(self, key: str) -> LaneValue:
        place = self.function.row(self._keys.index(key), self._channel)
        return self._code.load(place, self._numbers, self._mask)

    def _store(self, key: str, value: LaneValue) -> None:
        place = self.function.row(self._keys.index(key), self._channel)
        self._code.store(value, place, self._mask)

    def _spread(self, value: LaneValue) -> LaneValue:
        return self._code.splat(value, LANES)

    def _as_number(self, value: LaneValue) -> LaneValue:
        """Return a number common to all channels with the type of a channel's numbers."""
        found = convert(self._code, value, self._numbers.dtype)
        return self._code.splat(found, self._numbers.lanes)

    def _constant(self, number: float) -> LaneValue:
        return self._code.constant(number, self._numbers)

    def _square(self, value: LaneValue) -> LaneValue:
        return self._op("square", value)

    def _op(self, function: str, *args: LaneValue) -> LaneValue:
        return call_function(self._code, function, args)
