"""Values that a program can record: for each kernel the operators' results that it leaves in
memory.

A kernel that covers several operators only leaves results that others read. Two programs of one
model that differ in precision, batch size or form of kernels have equal keys for equal values.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation, SSAValue

from csrun.cirh.batch_axes import BatchRelation, Dependence, Dependences
from csrun.cirh.ops.half import HalfWordsOp, NarrowHalfOp, RoundHalfOp, WidenHalfOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS, Graph
from csrun.compiler.graph.kernel import Kernel
from csrun.compiler.lair.loop_kernel import LoopKernel
from csrun.executable import GRADIENT, INPUT, RECORDED, Combine, RecordedValue

_FORMATS = (HalfWordsOp, NarrowHalfOp, RoundHalfOp, WidenHalfOp)


@dataclass(frozen=True)
class WrittenValue:
    """A value in memory, and its name in a comparison."""

    array: Array
    value: RecordedValue


class WrittenValues:
    """Values that the kernels of a graph leave in memory."""

    def __init__(self, graph: Graph, dependences: Dependences) -> None:
        self._graph, self._dependences = graph, dependences
        self._keys = _keys_of(graph.operations)
        self._covered: dict[int, list[Operation]] = defaultdict(list)
        for op, place in graph.taken.items():
            self._covered[place].append(op)

    def of(self, kernel: Kernel, place: int) -> tuple[WrittenValue, ...]:
        """Return the values of a kernel at this position of the program."""
        found: dict[Array, WrittenValue] = {}
        names = {array.name for array in kernel.writes}
        covered = set(self._covered[place])
        for op in sorted(covered, key=self._graph.place_of):
            for result in op.results:
                array = self._graph.known_array(result)
                # Within a kernel a result may overwrite the one before it.
                is_left = not covered.issuperset(self._graph.readers(result))
                if is_left and array is not None and array.name in names and not array.repeats:
                    found[array] = WrittenValue(array, self._described(kernel, op, result, array))
        matched = {array.name for array in found}
        for array in kernel.writes:
            if array.name not in matched:
                found[array] = WrittenValue(array, self._internal(kernel, place, array))
        return tuple(found.values())

    def _described(
        self, kernel: Kernel, op: Operation, result: SSAValue, array: Array
    ) -> RecordedValue:
        source = _source(op)
        key = array.stem if array.name.startswith(GRADIENT) else self._keys[result]
        return RecordedValue(
            key=key,
            layer=self._graph.layer_of(source),
            operator=source.name.removeprefix("cirh."),
            kernel=_name_of(kernel),
            line=line_of(source) or line_of(op),
            recorded=_recorded(result) or _recorded(source.results[0]),
            **_combined(self._dependences.get(result)),
        )

    def _internal(self, kernel: Kernel, place: int, array: Array) -> RecordedValue:
        """Return an array of a kernel that is not an operator's result."""
        root = self._graph.operations[place]
        sums = {"combine": Combine.SUM} if array.name == LOSS.name else {"combine": None}
        return RecordedValue(
            key=array.stem,
            layer=kernel.layer,
            operator=array.name.rpartition("/")[2],
            kernel=kernel.kind,
            line=line_of(root),
            **sums,
        )


def read_values(kernel: Kernel) -> Iterator[WrittenValue]:
    """Return the inputs of the batch and weights that a kernel reads."""
    for array in kernel.reads:
        is_input = array.name.startswith(INPUT)
        if not (is_input or array.is_weight):
            continue
        kind = "input" if is_input else "weights"
        combine = Combine.SAMPLES if is_input and array.base.shape else Combine.FIRST
        key = array.name if is_input else f"weights/{array.name}"
        layer = "" if is_input else kernel.layer
        yield WrittenValue(array.base, RecordedValue(key, layer, kind, combine=combine))


def line_of(operation: Operation) -> str:
    """Return the user's file and line of an operator; empty if unknown."""
    match operation.location:
        case FileLineColLoc(filename=file, line=line):
            return f"{file.data}:{line.data}"
    return ""


def _recorded(value: SSAValue) -> str:
    """Return the name of a value in a recorded PyTorch step; empty if it has none."""
    name = value.name_hint or ""
    return name if name.startswith(RECORDED) else ""


def _name_of(kernel: Kernel) -> str:
    """Return the kind of a kernel; for a generated one with its operators."""
    if not isinstance(kernel, LoopKernel):
        return kernel.kind
    operators = (name.removeprefix("cirh.") for name in kernel.loop.operators)
    return f"{kernel.kind} ({', '.join(operators)})"


def _combined(dependence: Dependence | None) -> dict[str, Any]:
    """Return the fields that define how the values of minibatches are combined."""
    if dependence is None:
        return {"combine": None}
    if dependence.axis is not None:
        place = {"axis": dependence.axis, "rows": dependence.rows, "outer": dependence.outer}
        return {"combine": Combine.SAMPLES, **place}
    combine = {BatchRelation.PART: Combine.SUM, BatchRelation.SAME: Combine.FIRST}.get(
        dependence.over
    )
    return {"combine": combine}


def _source(op: Operation) -> Operation:
    """Return the operator whose result an operator only converts to another format."""
    while isinstance(op, _FORMATS) and isinstance(op.operands[0].owner, Operation):
        op = op.operands[0].owner
    return op


def _keys_of(operations: Sequence[Operation]) -> dict[SSAValue, str]:
    """Return layer and operator of each value, with an index among the layer's operators of this
    name.
    """
    found: dict[SSAValue, str] = {}
    counts: Counter[str] = Counter()
    for op in operations:
        if isinstance(op, _FORMATS):
            found[op.results[0]] = found[op.operands[0]]
            continue
        scope = getattr(op, "scope", None)
        stem = f"{scope.data if scope is not None else 'model'}/{op.name.removeprefix('cirh.')}"
        for result in op.results:
            found[result] = f"{stem}_{counts[stem]}" if counts[stem] else stem
            counts[stem] += 1
    return found
