"""Machine code at the end of a loss: the sum over rows, its mean, the loss of a mean.

Sums have NumPy's order: pairwise summation with eight accumulators per block of 128.
"""

from dataclasses import replace
from math import nan

from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index, stored_size
from csrun.compiler.emit.llvm.library.library_function import LibraryFunction, each_vector
from csrun.compiler.emit.llvm.literals import FLOATS
from csrun.compiler.emit.llvm.loops.scalars import convert
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.outputs import LossOfMean
from csrun.compiler.kernels.padding import first_of_padding
from csrun.compiler.kernels.softmax_cross_entropy import LossSum

_WIDE = "float64"
_EVEN, _ODD = "<i32 0, i32 2, i32 4, i32 6>", "<i32 1, i32 3, i32 5, i32 7>"
_PIECE = 128  # of numpy/_core/src/umath/loops_utils.h.src: PW_BLOCKSIZE


def loss_sum_code(kernel: LossSum, name: str) -> KernelCode | None:
    """Return machine code of one row: masks the losses of rows, then adds them up.

    None if labels are not contiguous, or losses are not float32.
    """
    parts, losses = kernel.parts, kernel.of_rows
    labels = parts.labels
    if losses.dtype != "float32" or labels.dtype not in ("int32", "int64"):
        return None
    if labels.strides != (1,) or not _fits(parts.ignore_index, labels.dtype):
        return None
    count = kernel.count if kernel.mean is not None else "1"
    arrays = [losses, labels, parts.ignored, kernel.loss]
    arrays += [] if kernel.mean is None else [kernel.mean]
    arrays += [count] if isinstance(count, Array) else []
    padding = None if parts.padding is None else first_of_padding(parts.padding)
    texts = [] if padding is None else [padding]
    texts += [count] if isinstance(count, str) and count != "1" else []
    function = LibraryFunction(arrays, texts)
    _write_masks(function, kernel, None if padding is None else function.integer(padding))
    code = function.code
    pairwise = f"@{name}.pairwise"
    operands = f"ptr {function.pointers[0]}, {index(parts.rows)}"
    total = code.make(Kind("float32"), f"call float {pairwise}({operands})")
    total = code.op("fadd", convert(code, total, _WIDE), code.constant(0, Kind(_WIDE)))  # not -0.0
    code.store(total, function.pointers[3])
    if kernel.mean is not None:
        divisor = code.constant(1, Kind(_WIDE))
        if isinstance(count, Array):
            number = code.load(function.pointers[5], Kind(count.dtype))
            divisor = convert(code, number, _WIDE)
        elif count != "1":
            divisor = function.number(count)
        mean = convert(code, code.op("fdiv", total, divisor), kernel.mean.dtype)
        code.store(mean, function.pointers[4])
    found = function.finished(name, 1)
    return replace(found, text=f"{found.text}\n\n{_PAIRWISE.replace('@pairwise', pairwise)}")


def loss_of_mean_code(kernel: LossOfMean, name: str) -> KernelCode | None:
    """Return machine code of one row; None for a mean that is not a float."""
    if kernel.x.dtype not in FLOATS:
        return None
    function = LibraryFunction((kernel.x, kernel.out), (kernel.count_text,))
    code = function.code
    mean = convert(code, code.load(function.pointers[0], Kind(kernel.x.dtype)), _WIDE)
    code.store(code.op("fmul", mean, function.number(kernel.count_text)), function.pointers[1])
    return function.finished(name, 1)


def _fits(number: int, dtype: str) -> bool:
    bits = 8 * stored_size(dtype) - 1
    return -(1 << bits) <= number < 1 << bits


def _write_masks(function: LibraryFunction, kernel: LossSum, valid: LaneValue | None) -> None:
    """Write which rows do not count, and their losses; valid: number of rows before padding."""
    code, parts = function.code, kernel.parts
    kind = Kind(parts.labels.dtype, LANES)
    losses, labels, ignored = function.pointers[:3]

    def write(at: LaneValue, mask: LaneValue | None) -> None:
        label = code.load(code.offset(labels, kind.dtype, at), kind, mask)
        place = code.offset(losses, "float32", at)
        loss = code.load(place, Kind("float32", LANES), mask)
        if not parts.is_checked:  # negative labels are large, too
            is_bad = code.compare("uge", label, code.constant(parts.classes, kind))
            loss = code.select(is_bad, code.constant(nan, loss.kind), loss)
        is_ignored = code.compare("eq", label, code.constant(parts.ignore_index, kind))
        if valid is not None:
            rows = code.op("add", code.splat(at, LANES), code.lane_numbers())
            is_padding = code.compare("sge", rows, code.splat(valid, LANES))
            is_ignored = code.op("or", is_ignored, is_padding)
        code.store(is_ignored, code.offset(ignored, "bool", at), mask)
        code.store(code.select(is_ignored, code.constant(0, loss.kind), loss), place, mask)

    each_vector(code, parts.rows, write)


#: NumPy's sum of consecutive float32 numbers.
_PAIRWISE = f"""\
define internal float @pairwise(ptr %x, i64 %n) nounwind {{
entry:
  %is_piece = icmp sle i64 %n, {_PIECE}
  br i1 %is_piece, label %piece, label %halves
halves:
  %half = lshr i64 %n, 1
  %left = and i64 %half, -8
  %right = sub i64 %n, %left
  %middle = getelementptr float, ptr %x, i64 %left
  %first = call float @pairwise(ptr %x, i64 %left)
  %second = call float @pairwise(ptr %middle, i64 %right)
  %both = fadd float %first, %second
  ret float %both
piece:
  %full = and i64 %n, -8
  br label %lanes
lanes:
  %i = phi i64 [ 0, %piece ], [ %i.next, %add ]
  %sums = phi <8 x float> [ splat (float -0.0), %piece ], [ %sums.next, %add ]
  %is_full = icmp slt i64 %i, %full
  br i1 %is_full, label %add, label %fold
add:
  %lanes.at = getelementptr float, ptr %x, i64 %i
  %own = load <8 x float>, ptr %lanes.at, align 4
  %sums.next = fadd <8 x float> %sums, %own
  %i.next = add i64 %i, 8
  br label %lanes
fold:
  %even.4 = shufflevector <8 x float> %sums, <8 x float> poison, <4 x i32> {_EVEN}
  %odd.4 = shufflevector <8 x float> %sums, <8 x float> poison, <4 x i32> {_ODD}
  %sums.4 = fadd <4 x float> %even.4, %odd.4
  %even.2 = shufflevector <4 x float> %sums.4, <4 x float> poison, <2 x i32> <i32 0, i32 2>
  %odd.2 = shufflevector <4 x float> %sums.4, <4 x float> poison, <2 x i32> <i32 1, i32 3>
  %sums.2 = fadd <2 x float> %even.2, %odd.2
  %even = extractelement <2 x float> %sums.2, i64 0
  %odd = extractelement <2 x float> %sums.2, i64 1
  %folded = fadd float %even, %odd
  br label %rest
rest:
  %j = phi i64 [ %full, %fold ], [ %j.next, %one ]
  %sum = phi float [ %folded, %fold ], [ %sum.next, %one ]
  %is_left = icmp slt i64 %j, %n
  br i1 %is_left, label %one, label %end
one:
  %one.at = getelementptr float, ptr %x, i64 %j
  %number = load float, ptr %one.at
  %sum.next = fadd float %sum, %number
  %j.next = add i64 %j, 1
  br label %rest
end:
  ret float %sum
}}"""
