"""Loop nests over the inner axes of a row: merged axes, and points of a nest."""

from collections.abc import Sequence
from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index, stored_size
from csrun.compiler.emit.llvm.loops.members import SCRATCH, Access, LoopNest, Member
from csrun.executable.arrays import aligned


@dataclass(frozen=True)
class NestPoint:
    """A point of a nest, or a vector of points along the last axis.

    places: loop counter of each loop, with the axes it merges.
    dims: axes of the vectors.
    part: index of the partial sum.
    """

    stage: LoopNest
    row: LaneValue
    places: Sequence[tuple[list[int], LaneValue]]
    dims: list[int]
    lanes: int
    mask: LaneValue | None
    part: int = 0


def accesses_of(member: Member) -> list[Access]:
    return [each for each in (*member.ins, *member.out) if isinstance(each, Access)]


def accesses_in(stage: LoopNest) -> list[Access]:
    """Return the locations that a nest's loops access."""
    found = []
    for member in stage.members:
        if not member.classes:
            found += [each for each in member.ins if isinstance(each, Access)]
            found += [member.part] if member.summed else member.out
    return found


def rows_read(stages: Sequence[LoopNest]) -> dict[Access, None]:
    """Return the arrays whose rows the nests read contiguously, in order of access."""
    places = (a for stage in stages for member in stage.members for a in member.ins)
    found = (a for a in places if isinstance(a, Access) and a.parameter != SCRATCH and a.row)
    return dict.fromkeys(a for a in found if a.axes[-1:] == (1,))


Axes = list[tuple[int, list[int]]]


def axes_of(stage: LoopNest, accesses: Sequence[Access]) -> tuple[Axes, Axes]:
    """Return the axes outside of sums and those within: sizes, and the axes that each merges."""
    kept = len(stage.inner) - stage.reduced
    around = _merged(stage.inner, range(kept), accesses)
    within = _merged(stage.inner, range(kept, len(stage.inner)), accesses)
    return (around, within) if stage.reduced else ([], around)


def _merged(shape: Sequence[int], dims: Sequence[int], accesses: Sequence[Access]) -> Axes:
    """Merge axes that are adjacent in every array."""
    found: Axes = []
    for d in dims:
        if shape[d] == 1:
            continue
        those = [a for a in accesses if len(a.axes) > d]  # a sum only has the axes that it keeps
        if found and all(a.axes[found[-1][1][-1]] == a.axes[d] * shape[d] for a in those):
            size, before = found[-1]
            found[-1] = (size * shape[d], [*before, d])
        else:
            found.append((shape[d], [d]))
    return found


def argument(code: Code, number: int) -> str:
    """Return the address in an argument of a function."""
    place = code.offset("%arguments", "int64", index(number))
    return code.make(INDEX, f"load ptr, ptr {place}, align 8").text


def part_bytes(member: Member, elements: int) -> int:
    """Return the size of one partial sum, in bytes."""
    return aligned(elements * stored_size(member.out_dtype))


def least_of(kind: Kind) -> float:
    """Return the smallest number of a type."""
    return float("-inf") if kind.is_float else -(2 ** (8 * stored_size(kind.dtype) - 1))
