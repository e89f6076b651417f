"""Loops over flat arrays of one length, written as formulas: what updates of weights are.

    v = 0.9 * v + g; w = w - rate * v

is that on `Value`s, each of which is an operator of a `lair.kernel`. What an array takes over is
written where it lies, so that its old value must not be read any more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from csrun.cirh.types import Tensor, tensor_type, type_of
from csrun.compiler.array import Array
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair.loop import Loop
from csrun.compiler.lair.text import LoopText

#: Elements of a kernel before anybody knows how many: more than a tile has.
MANY = 1 << 30
#: Of a tile. Measured with AdamW's five arrays on a core with 1 MiB of L2: two thirds of it take
#: 2 % longer, a third 5 %; there are more passes over each than in other loops.
TILE_ELEMENTS = 96 << 10

Number = float | str  # a text may speak of the step


class Value:
    """What a formula computes with: all elements of a flat array, or of what came of some.

    operators: those of the kernel so far.
    """

    def __init__(self, operators: list[Operation], value: SSAValue) -> None:
        self._operators = operators
        self.value = value

    def __add__(self, other: "Value | Number") -> "Value":
        return self._of("add", other)

    def __sub__(self, other: "Value | Number") -> "Value":
        return self._of("subtract", other)

    def __mul__(self, other: "Value | Number") -> "Value":
        return self._of("multiply", other)

    def __truediv__(self, other: "Value | Number") -> "Value":
        return self._of("divide", other)

    def at_least(self, bound: Number) -> "Value":
        """The larger one of each element and the bound."""
        return self._of("maximum", bound)

    def root(self) -> "Value":
        """The square root of each element."""
        return self._of("sqrt")

    def _of(self, function: str, *others: "Value | Number") -> "Value":
        kind = type_of(self.value)
        arrays = [self.value, *(each.value for each in others if isinstance(each, Value))]
        body = lair.block([kind.element_type] * len(arrays))
        arguments = iter(body.block.args)
        args: list[SSAValue] = [next(arguments)]
        for each in others:
            is_array = isinstance(each, Value)
            args.append(next(arguments) if is_array else _number(body.block, each, kind))
        scalar = lair.ScalarOp(
            operands=[args],
            properties={"function": StringAttr(function), "options": DictionaryAttr({})},
            result_types=[kind.element_type],
        )
        body.block.add_ops([scalar, lair.YieldOp(operands=[scalar.out])])
        each_element = AffineMapAttr(AffineMap.identity(1))
        generic = lair.GenericOp(
            operands=[arrays],
            result_types=[kind],
            properties={
                "maps": ArrayAttr([each_element] * (len(arrays) + 1)),
                "iterators": ArrayAttr([lair.PARALLEL]),
            },
            regions=[body],
        )
        self._operators.append(generic)
        return Value(self._operators, generic.out)


def _number(block: Block, number: "Value | Number", kind: Tensor) -> SSAValue:
    text = StringAttr(number if isinstance(number, str) else repr(number))
    op = lair.NumberOp(properties={"text": text}, result_types=[kind.element_type])
    block.add_op(op)
    return op.out


Values = Mapping[str, Value]
Formula = Callable[[Values], Values]


def flat_loop(name: str, arrays: Sequence[str], dtype: str, formula: Formula) -> Loop:
    """The loop of a formula: from the values of the arrays to those that some of them take over."""
    places = {array: Array(array, (MANY,), dtype) for array in arrays}
    kind = tensor_type((MANY,), dtype)
    reads = {array: lair.ReadOp.of(place, kind) for array, place in places.items()}
    operators: list[Operation] = []
    found = formula({array: Value(operators, read.out) for array, read in reads.items()})
    region = lair.block()
    region.block.add_ops(read for read in reads.values() if read.out.uses.get_length())
    region.block.add_ops(operators)
    for array, value in found.items():
        _check(array, reads[array], value)
        symbol = {"symbol": StringAttr(array)}
        region.block.add_op(lair.WriteOp(operands=[value.value], properties=symbol))
    properties: dict[str, Attribute] = {
        "symbol": StringAttr(name),
        "rows": IntegerAttr(MANY, i64),
        "tile": IntegerAttr(MANY, i64),
        "operators": ArrayAttr([StringAttr(name)]),
    }
    kernel = lair.KernelOp(regions=[region], properties=properties)
    loop = Loop(kernel, {array: places[array] for array in found}, 0)
    kernel.properties["tile"] = IntegerAttr(TILE_ELEMENTS, i64)
    return loop


def _check(array: str, read: lair.ReadOp, value: Value) -> None:
    """What an array takes over is computed after the last operator that reads the array."""
    made = value.value.owner
    assert isinstance(made, Operation), "an operator makes it"
    for use in read.out.uses:
        reader = use.operation
        is_before = reader is made or reader.is_before_in_block(made)
        assert is_before, f"{array} is read after its next value is there"


def cut(text: LoopText, elements: int, number: str) -> LoopText:
    """The text of a loop over so many elements; `number` tells it from others of its program."""
    tile = min(TILE_ELEMENTS, elements)
    return replace(text, pieces=f"tiles_{number}", rows=elements, tile=tile)
