"""Loops over rows written as formulas: the computation of each number, and of each row.

    e = (x - x.largest()).exp(); y = e / e.total()

A formula operates on `FormulaValue`s, each of which is an operator of a `lair.kernel`. An array of
the program that gets a new value is overwritten, so its old value must not be read afterwards.
"""

from collections.abc import Callable, Mapping

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from csrun.base.half_formats import HalfFormat
from csrun.cirh.ops.base import attribute
from csrun.cirh.ops.half import ConvertingOp, NarrowHalfOp, WidenHalfOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, type_of
from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.lower import map_of
from csrun.compiler.lair.operators import IDENTITY, LARGEST, OF_LABEL, PICK

Number = float | str  # a text may depend on the step


class FormulaValue:
    """Value of a formula: an array of rows, or a result computed from arrays.

    operators: those of the kernel so far. Shapes: [N], or [N, C] and [N, 1], which broadcast
    """

    def __init__(self, operators: list[Operation], value: SSAValue) -> None:
        self._operators = operators
        self.value = value

    def __add__(self, other: "FormulaValue | Number") -> "FormulaValue":
        return self._each("add", other)

    def __sub__(self, other: "FormulaValue | Number") -> "FormulaValue":
        return self._each("subtract", other)

    def __mul__(self, other: "FormulaValue | Number") -> "FormulaValue":
        return self._each("multiply", other)

    def __truediv__(self, other: "FormulaValue | Number") -> "FormulaValue":
        return self._each("divide", other)

    def at_least(self, bound: "FormulaValue | Number") -> "FormulaValue":
        """Return the maximum of each number and the bound."""
        return self._each("maximum", bound)

    def at_most(self, bound: "FormulaValue | Number") -> "FormulaValue":
        """Return the minimum of each number and the bound."""
        return self._each("minimum", bound)

    def magnitude(self) -> "FormulaValue":
        """Return absolute values."""
        return self._each("absolute")

    def root(self) -> "FormulaValue":
        """Return square roots."""
        return self._each("sqrt")

    def reciprocal(self) -> "FormulaValue":
        """Return 1 / x."""
        return self._each("reciprocal")

    def exp(self) -> "FormulaValue":
        """Return exp(x)."""
        return self._each("exp")

    def log(self) -> "FormulaValue":
        """Return natural logarithms."""
        return self._each("log")

    def narrow(self, half: HalfFormat) -> "FormulaValue":
        """Return words of a 16-bit format."""
        return self._converted(NarrowHalfOp, half)

    def widen(self, half: HalfFormat) -> "FormulaValue":
        """Return the numbers of words of a 16-bit format."""
        return self._converted(WidenHalfOp, half)

    def total(self) -> "FormulaValue":
        """Return the sum of each row: [N, C] -> [N, 1]."""
        return self._of_row(IDENTITY)

    def largest(self) -> "FormulaValue":
        """Return the maximum of each row: [N, C] -> [N, 1]."""
        return self._of_row(LARGEST)

    def over_rows(self) -> "FormulaValue":
        """Return the sum over all rows: [N, C] -> [1, C]."""
        shape = shape_of(type_of(self.value))
        return self._generic(IDENTITY, (), shape, (1, *shape[1:]), {})

    def pick(self, labels: "FormulaValue") -> "FormulaValue":
        """Return the number at each row's label; labels [N], [N, C] -> [N, 1].

        The result for an invalid label is undefined.
        """
        return self._of_row(PICK, labels)

    def of_label(
        self,
        share: float,
        labels: "FormulaValue",
        ignored: "FormulaValue",
        scale: "FormulaValue | Number",
    ) -> "FormulaValue":
        """Return (x - share at the row's label) scale, and 0 in ignored rows."""
        return self._each(OF_LABEL, labels, ignored, scale, share=share)

    def _converted(self, kind: type[ConvertingOp], half: HalfFormat) -> "FormulaValue":
        options = {"mantissa_bits": half.mantissa_bits, "bias": half.bias}
        shape = shape_of(type_of(self.value))
        return self._generic(kind.name, (), shape, shape, options, kind.TO)

    def _each(
        self, function: str, *others: "FormulaValue | Number", **options: float
    ) -> "FormulaValue":
        shape = shape_of(type_of(self.value))
        for other in others:
            own = shape_of(type_of(other.value)) if isinstance(other, FormulaValue) else ()
            if len(own) == len(shape):
                shape = tuple(map(max, shape, own))
        return self._generic(function, others, shape, shape, options)

    def _of_row(self, function: str, *others: "FormulaValue") -> "FormulaValue":
        shape = shape_of(type_of(self.value))
        return self._generic(function, others, shape, (shape[0], 1), {})

    def _generic(
        self,
        function: str,
        others: "tuple[FormulaValue | Number, ...]",
        space: Shape,
        out: Shape,
        options: Mapping[str, float],
        dtype: str | None = None,
    ) -> "FormulaValue":
        kind = type_of(self.value)
        element = kind.element_type if dtype is None else tensor_type((), dtype).element_type
        arrays = [self.value, *(each.value for each in others if isinstance(each, FormulaValue))]
        body = lair.block([type_of(value).element_type for value in arrays])
        arguments = iter(body.block.args)
        args: list[SSAValue] = [next(arguments)]
        for each in others:
            is_array = isinstance(each, FormulaValue)
            args.append(next(arguments) if is_array else _number(body.block, each, kind))
        scalar = lair.ScalarOp(
            operands=[args],
            properties={
                "function": StringAttr(function),
                "options": DictionaryAttr({k: attribute(v) for k, v in options.items()}),
            },
            result_types=[element],
        )
        body.block.add_ops([scalar, lair.YieldOp(operands=[scalar.out])])
        maps = [_by_rows(shape_of(type_of(value)), space) for value in arrays]
        kinds = [
            lair.PARALLEL if n == m else lair.REDUCTION for n, m in zip(space, out, strict=True)
        ]
        generic = lair.GenericOp(
            operands=[arrays],
            result_types=[tensor_type(out, dtype or dtype_of(kind))],
            properties={
                "maps": ArrayAttr([AffineMapAttr(m) for m in (*maps, map_of(out, space))]),
                "iterators": ArrayAttr(kinds),
            },
            regions=[body],
        )
        self._operators.append(generic)
        return FormulaValue(self._operators, generic.out)


def _by_rows(own: Shape, space: Shape) -> AffineMap:
    """Return the index map of an operand: a single axis is that of the rows, others broadcast."""
    if len(own) == 1 and own[0] == space[0]:
        return AffineMap(len(space), 0, (AffineExpr.dimension(0),))
    return map_of(own, space)


def _number(block: Block, number: "FormulaValue | Number", kind: Tensor) -> SSAValue:
    text = StringAttr(number if isinstance(number, str) else repr(number))
    op = lair.NumberOp(properties={"text": text}, result_types=[kind.element_type])
    block.add_op(op)
    return op.out


Values = Mapping[str, FormulaValue]
Formula = Callable[[Values], Values]


def formula_loop(
    name: str, reads: Mapping[str, Array], writes: Mapping[str, Array], formula: Formula
) -> KernelLoop:
    """Return the loop of a formula, from the arrays' values to their new values.

    Shapes: the number of rows is that of the first array
    """
    return KernelLoop(*formula_kernel(name, reads, writes, formula))


def formula_kernel(
    name: str, reads: Mapping[str, Array], writes: Mapping[str, Array], formula: Formula
) -> tuple[lair.KernelOp, dict[str, Array]]:
    """Return the kernel of a formula, and the arrays that it writes."""
    operators: list[Operation] = []
    sources = {
        key: lair.ReadOp.of(array, tensor_type(array.shape, array.dtype))
        for key, array in reads.items()
    }
    found = formula({key: FormulaValue(operators, read.out) for key, read in sources.items()})
    region = lair.block()
    region.block.add_ops(read for read in sources.values() if read.out.uses.get_length())
    region.block.add_ops(operators)
    for key, value in found.items():
        for read in sources.values():
            if read.array.name == writes[key].name:
                _check(key, read, value)
        symbol = {"symbol": StringAttr(key)}
        region.block.add_op(lair.WriteOp(operands=[value.value], properties=symbol))
    rows = IntegerAttr(next(iter(reads.values())).shape[0], i64)
    properties: dict[str, Attribute] = {
        "symbol": StringAttr(name),
        "rows": rows,
        "tile": rows,
        "operators": ArrayAttr([StringAttr(name)]),
    }
    kernel = lair.KernelOp(regions=[region], properties=properties)
    return kernel, {key: writes[key] for key in found}


def _check(key: str, read: lair.ReadOp, value: FormulaValue) -> None:
    """Check that an array is overwritten after the last operator that reads it."""
    made = value.value.owner
    assert isinstance(made, Operation), "it is the result of an operator"
    for use in read.out.uses:
        reader = use.operation
        is_before = reader is made or reader.is_before_in_block(made)
        assert is_before, f"{key} is read after its next value was assigned"
