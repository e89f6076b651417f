"""Lowering of a cluster of CIRH operators to a `lair` kernel."""

from collections.abc import Sequence
from itertools import chain

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from csrun.cirh.ops.base import attribute
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.view_ops import base_of
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair.cluster import Cluster
from csrun.compiler.lair.operators import Shape, operands_of, scalar_of
from csrun.compiler.lair.space import Space


class Lowering:
    """Builds one kernel; `reads` and `writes` are the program's arrays, viewed by rows."""

    def __init__(self, cluster: Cluster, graph: Graph) -> None:
        self._graph = graph
        self._members = cluster.members
        self._inside = set(cluster.members)
        self._rows = cluster.rows
        self._spaces = cluster.spaces
        self._region = lair.block()
        self._values: dict[SSAValue, SSAValue] = {}
        self._reads: dict[Array, SSAValue] = {}
        self.writes: dict[str, Array] = {}

    def build(self) -> lair.KernelOp:
        """Return the kernel."""
        for op in self._members:
            self._values[op.results[0]] = self._generic(op)
        for op in self._members:
            if self._is_read_outside(op):
                self._write(op)
        operators = ArrayAttr([StringAttr(op.name) for op in self._members])
        last = self._members[-1]
        name = self._graph.new_name(
            f"{self._graph.layer_of(last)}/{last.name[len('cirh.') :]}/loop"
        )
        return lair.KernelOp(
            regions=[self._region],
            properties={
                "symbol": StringAttr(name),
                "rows": IntegerAttr(self._rows, i64),
                "tile": IntegerAttr(self._rows, i64),
                "operators": operators,
            },
        )

    def _write(self, op: Operation) -> None:
        array = self._graph.array(op.results[0]).reshaped(self._spaces[op].result)
        assert array is not None, "results have rows"
        self.writes[array.stem] = array
        self._region.block.add_op(
            lair.WriteOp(
                operands=[self._values[op.results[0]]],
                properties={"symbol": StringAttr(array.stem)},
            )
        )

    def _is_read_outside(self, op: Operation) -> bool:
        return any(r not in self._inside for r in self._graph.readers(op.results[0]))

    def _value(self, value: SSAValue, shape: Shape) -> SSAValue:
        """Return the kernel's own value: computed in it, possibly reshaped, or read."""
        own = self._values.get(base_of(value))
        if own is None:
            return self._read(value, shape)
        if shape_of(type_of(own)) == shape:
            return own
        view = lair.ViewOp(operands=[own], result_types=[_shaped(value, shape)])
        self._region.block.add_op(view)
        return view.out

    def _read(self, value: SSAValue, shape: Shape) -> SSAValue:
        array = self._graph.array(value).reshaped(shape)
        assert array is not None, "operands have rows"
        if array not in self._reads:
            read = lair.ReadOp.of(array, _shaped(value, shape))
            self._region.block.add_op(read)
            self._reads[array] = read.out
        return self._reads[array]

    @property
    def reads(self) -> tuple[Array, ...]:
        return tuple(self._reads)

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
        space = self._spaces[op]
        rowed, summed = space.rowed, space.summed_rowed
        shapes = [space.operand(shape_of(type_of(v))) for v in ins]
        maps = [map_of(shape, rowed) for shape in shapes] + [_out_map(space)]
        generic = lair.GenericOp(
            operands=[[self._value(v, shape) for v, shape in zip(ins, shapes, strict=True)]],
            result_types=[_shaped(op.results[0], space.result)],
            properties={
                "maps": ArrayAttr([AffineMapAttr(m) for m in maps]),
                "iterators": ArrayAttr(
                    [lair.REDUCTION if d in summed else lair.PARALLEL for d in range(len(rowed))]
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
    assert scalar is not None, f"{op.name} is not an operator of lair"
    options = {name: attribute(value) for name, value in scalar.options}
    call = lair.ScalarOp(
        operands=[args],
        properties={"function": StringAttr(scalar.function), "options": DictionaryAttr(options)},
        result_types=[type_of(op.results[0]).element_type],
    )
    block.add_ops([call, lair.YieldOp(operands=[call.out])])


def _shaped(value: SSAValue, shape: Shape) -> TensorType[Attribute]:
    return TensorType(type_of(value).element_type, shape)


def map_of(own: Shape, space: Shape) -> AffineMap:
    """Return the index map of an operand that broadcasts to the space."""
    first = len(space) - len(own)
    return AffineMap(len(space), 0, tuple(_place(first + d, n, space) for d, n in enumerate(own)))


def _place(d: int, size: int, space: Shape) -> AffineExpr:
    if size == space[d]:
        return AffineExpr.dimension(d)
    return AffineExpr.dimension(d) % size if size > 1 else AffineExpr.constant(0)


def _out_map(space: Space) -> AffineMap:
    """Return the index map of a point's result: summed axes are dropped, or kept with size 1."""
    summed, rowed = space.summed_rowed, space.rowed
    if space.sums_rows and space.period > 1:
        return map_of(space.result, rowed)
    kept = len(space.result) == len(rowed)
    results = chain.from_iterable(
        ([AffineExpr.constant(0)] if kept else []) if d in summed else [AffineExpr.dimension(d)]
        for d in range(len(rowed))
    )
    return AffineMap(len(rowed), 0, tuple(results))
