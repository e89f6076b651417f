"""Operators of a kernel, their loop nests, and the locations of their operands."""

from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from csrun.compiler.emit.llvm.lane_values import NoMachineCodeError
from csrun.compiler.graph.array import Array, Shape, contiguous
from csrun.compiler.lair.formula_trace import Options

SCRATCH = -1  # in place of a parameter's index
PARTS = 8  # number of partial sums over rows, which are added in order


@dataclass(frozen=True)
class Access:
    """Location of a value: strides in elements, of the rows and of the inner axes of a space.

    parameter: its index, or SCRATCH, where `start` is the first byte.
    period: number of rows after which they repeat; 0 if they do not.
    """

    parameter: int
    dtype: str
    row: int
    axes: tuple[int, ...]
    period: int = 0
    start: int = 0

    @property
    def base(self) -> tuple[int, str, int, int, int]:
        """The access without its inner axes: the address of a row."""
        return (self.parameter, self.dtype, self.row, self.period, self.start)


@dataclass
class Member:
    """An operator of a kernel.

    ins: an access, or the operator of the same stage whose value is used.
    numbers: texts of operands that are numbers, by position among all operands.
    out: location of the result.
    summed: whether it is summed over rows.
    dropped: inner axes over which it is summed in the same way.
    comes_again: number of result rows, if they repeat.
    """

    value: SSAValue
    function: str
    options: Options
    inner: Shape
    reduced: int
    args: list[int | str]
    ins: list["Access | Member"]
    out_dtype: str
    stage: int = 0
    out: list[Access] = field(default_factory=list)
    summed: bool = False
    comes_again: int = 0
    at: int = 0  # of a sum over rows: its first byte in the partial sums
    dropped: tuple[int, ...] = ()
    classes: int = 0  # of a pick: the index range of a row

    @property
    def is_pointwise(self) -> bool:
        """Return whether it has a value at each point of its space."""
        return not self.reduced and not self.summed and not self.comes_again

    @property
    def is_scaling(self) -> bool:
        """Return whether it multiplies float32 by a number."""
        numbers = sum(isinstance(arg, str) for arg in self.args)
        return self.function == "multiply" and self.out_dtype == "float32" and numbers == 1

    @property
    def kept_axes(self) -> Shape:
        """Inner axes of the result."""
        around = self.inner[: len(self.inner) - self.reduced]
        return tuple(n for d, n in enumerate(around) if d not in self.dropped)

    @property
    def part(self) -> "Access":
        """Return a partial sum over rows, from its start."""
        strides = iter(contiguous(self.kept_axes))
        around = range(len(self.inner) - self.reduced)
        axes = tuple(0 if d in self.dropped else next(strides) for d in around)
        return Access(SCRATCH, self.out_dtype, 0, axes)


@dataclass
class LoopNest:
    """Operators in one loop nest, whose last `reduced` axes are summed in it."""

    inner: Shape
    reduced: int
    members: list[Member] = field(default_factory=list)


def result_access(member: Member, number: int, target: Array, has_rows: bool) -> Access:
    """Return the location of the result in the program's array, without size-1 axes of a
    sum.
    """
    strides = target.strides
    row = 0
    if has_rows and not member.summed:
        row, strides = strides[0], strides[1:]
    shape = target.shape[len(target.shape) - len(strides) :]
    kept = [(n, s) for n, s in zip(shape, strides, strict=True)]
    wanted = list(member.kept_axes)
    while len(kept) > len(wanted):  # axes of size 1 that were summed
        place = next((d for d, (n, _) in enumerate(kept) if n == 1), None)
        if place is None:
            raise NoMachineCodeError("a result of another shape")
        at = place if member.summed and place == 0 else len(kept) - 1
        if kept[at][0] != 1:
            raise NoMachineCodeError("a result of another shape")
        del kept[at]
    if [n for n, _ in kept] != wanted:
        raise NoMachineCodeError("a result of another shape")
    if target.repeats:
        raise NoMachineCodeError("a result that repeats")
    if target.dtype != member.out_dtype:
        raise NoMachineCodeError("a result of another type")
    return Access(number, target.dtype, row, tuple(s for _, s in kept), member.comes_again)
