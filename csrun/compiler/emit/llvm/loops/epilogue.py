"""Function of a kernel that adds the partial sums over rows."""

from dataclasses import replace
from math import prod

from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.function import FunctionWriter
from csrun.compiler.emit.llvm.loops.members import Access, LoopNest
from csrun.compiler.emit.llvm.loops.nests import NestPoint, part_bytes
from csrun.compiler.emit.llvm.loops.row_sums import RowReduction, add_lanes
from csrun.compiler.emit.llvm.loops.scalars import call_function
from csrun.compiler.graph.array import contiguous


class EpilogueWriter(FunctionWriter):
    """Writes the function that adds partial sums over rows."""

    def write_epilogue(self) -> list[str]:
        """Return its instructions; empty without such sums."""
        sums = [member for member in self._stages.members if member.summed]
        if not sums:
            return []
        self._load_arguments()
        for member in sums:
            whole = replace(
                member, inner=member.kept_axes, reduced=0, ins=[], summed=False, dropped=()
            )
            self._rows = {access.base: self._pointer(access) for access in member.out}
            self._write_stage(LoopNest(whole.inner, 0, [whole]), index(0))
        return self._finished()

    def _point(self, point: NestPoint, sums: dict[int, RowReduction]) -> None:
        (member,) = point.stage.members
        is_flat = self._stages.is_flat
        lanes = LANES if is_flat else point.lanes
        elements = LANES if is_flat else max(prod(member.kept_axes), 1)
        total: LaneValue | None = None
        for part in range(self._stages.parts):
            start = member.at + part * part_bytes(member, elements)
            pointer = self._code.offset(self._parts, "int8", index(start))
            place = self._place(
                Access(0, member.out_dtype, 0, contiguous(member.kept_axes)), point, pointer
            )
            value = self._code.load(place, Kind(member.out_dtype, lanes), point.mask)
            total = value if total is None else call_function(self._code, "add", [total, value])
        assert total is not None, "there is a row"
        self._store(member, add_lanes(self._code, total) if is_flat else total, point)
