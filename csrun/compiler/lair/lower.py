"""A cluster of CIRH's operators to a kernel of `lair`."""

from collections.abc import Sequence
from itertools import chain

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    f64,
    i64,
)
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from csrun.cirh.ops.shape import ViewOp
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair.cluster import Cluster
from csrun.compiler.lair.operators import (
    Shape,
    operands_of,
    reduced_axes,
    scalar_of,
    space_of,
)
from csrun.compiler.views import base_of


class Lowering:
    """Builds one kernel; `arrays` are those of the program that it reads and writes, by name."""

    def __init__(self, cluster: Cluster, graph: Graph) -> None:
        self._graph = graph
        self._members = cluster.members
        self._region = lair.block()
        self._values: dict[SSAValue, SSAValue] = {}
        self.reads: dict[SSAValue, Array] = {}
        self.writes: dict[str, Array] = {}

    def build(self, rows: int, tile: int) -> lair.KernelOp:
        """The kernel."""
        for op in self._members:
            self._values[op.results[0]] = self._generic(op)
        for op in self._members:
            if self._is_read_outside(op):
                array = self._graph.array(op.results[0])
                self.writes[array.name] = array
                self._append(
                    lair.WriteOp(
                        operands=[self._values[op.results[0]]],
                        properties={"symbol": StringAttr(array.name)},
                    )
                )
        operators = ArrayAttr([StringAttr(op.name) for op in self._members])
        name = self._graph.array(self._members[-1].results[0]).stem
        return lair.KernelOp(
            regions=[self._region],
            properties={
                "symbol": StringAttr(name),
                "rows": IntegerAttr(rows, i64),
                "tile": IntegerAttr(tile, i64),
                "operators": operators,
            },
        )

    def _is_read_outside(self, op: Operation) -> bool:
        return any(r not in self._members for r in self._graph.readers(op.results[0]))

    def _append(self, op: Operation) -> SSAValue | None:
        self._region.block.add_op(op)
        return op.results[0] if op.results else None

    def _value(self, value: SSAValue) -> SSAValue:
        """The kernel's own value: made in it, a view of such a one, or read."""
        if value not in self._values:
            self._values[value] = self._find(value)
        return self._values[value]

    def _find(self, value: SSAValue) -> SSAValue:
        owner = value.owner
        if isinstance(owner, ViewOp) and base_of(value).owner in self._members:
            inner = self._value(owner.x)
            view = lair.ViewOp(operands=[inner], result_types=[value.type])
            self._region.block.add_op(view)
            return view.out
        array = self._graph.array(value)
        self.reads[value] = array
        read = lair.ReadOp.of(array, type_of(value))
        self._region.block.add_op(read)
        return read.out

    def _generic(self, op: Operation) -> SSAValue:
        operands = operands_of(op)
        texts = [self._graph.number(value) for value in operands]
        ins = [v for v, text in zip(operands, texts, strict=True) if text is None]
        body = lair.block([type_of(v).element_type for v in ins])
        arguments = iter(body.block.args)
        args = [
            next(arguments) if text is None else _number(body.block, text, value)
            for value, text in zip(operands, texts, strict=True)
        ]
        _body(body.block, op, args)
        space, summed = space_of(op), reduced_axes(op)
        maps = [_map(shape_of(type_of(v)), space) for v in ins] + [_out_map(op, space)]
        generic = lair.GenericOp(
            operands=[[self._value(v) for v in ins]],
            result_types=[op.results[0].type],
            properties={
                "maps": ArrayAttr([AffineMapAttr(m) for m in maps]),
                "iterators": ArrayAttr(
                    [lair.REDUCTION if d in summed else lair.PARALLEL for d in range(len(space))]
                ),
            },
            regions=[body],
        )
        self._region.block.add_op(generic)
        return generic.out


def _number(block: Block, text: str, value: SSAValue) -> SSAValue:
    kind = type_of(value)
    number = lair.NumberOp(
        properties={"text": StringAttr(text if is_float(kind) else repr(int(float(text))))},
        result_types=[kind.element_type],
    )
    block.add_op(number)
    return number.out


def _body(block: Block, op: Operation, args: Sequence[SSAValue]) -> None:
    scalar = scalar_of(op)
    assert scalar is not None, f"{op.name} is none of lair's"
    options = {name: FloatAttr(value, f64) for name, value in scalar.options}
    call = lair.ScalarOp(
        operands=[args],
        properties={"function": StringAttr(scalar.function), "options": DictionaryAttr(options)},
        result_types=[type_of(op.results[0]).element_type],
    )
    block.add_ops([call, lair.YieldOp(operands=[call.out])])


def _map(own: Shape, space: Shape) -> AffineMap:
    """Where the elements of an operand are that broadcasts to the space."""
    first = len(space) - len(own)
    results = (
        AffineExpr.constant(0) if size == 1 != space[first + d] else AffineExpr.dimension(first + d)
        for d, size in enumerate(own)
    )
    return AffineMap(len(space), 0, tuple(results))


def _out_map(op: Operation, space: Shape) -> AffineMap:
    """Where the result of a point goes: sums lose their axes, or keep them with size 1."""
    summed, out = reduced_axes(op), shape_of(type_of(op.results[0]))
    kept = len(out) == len(space)
    results = chain.from_iterable(
        ([AffineExpr.constant(0)] if kept else []) if d in summed else [AffineExpr.dimension(d)]
        for d in range(len(space))
    )
    return AffineMap(len(space), 0, tuple(results))
