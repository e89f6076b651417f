"""The dialect `lair`: loops over the rows of arrays; an operator is an index map and a scalar body.

A `lair.kernel` is self-contained: it names the arrays that it reads and writes. Its operators
process one tile of rows at a time, in order; axis 0 of every iteration space is the rows.
"""

from collections.abc import Sequence
from typing import Self

from xdsl.context import Context
from xdsl.dialects import builtin
from xdsl.ir import Attribute, Block, Dialect, Region
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator

from csrun.cirh import print_module_of
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.graph.array import Array

PARALLEL, REDUCTION = builtin.StringAttr("parallel"), builtin.StringAttr("reduction")


class _LairOp(IRDLOperation):
    irdl_options = (ParsePropInAttrDict(),)


@irdl_op_definition
class KernelOp(_LairOp):
    """One loop over `rows` rows, `tile` at a time; `operators` are the CIRH operators it was made
    from.
    """

    name = "lair.kernel"
    symbol = prop_def(builtin.StringAttr)
    rows = prop_def(builtin.IntegerAttr)
    tile = prop_def(builtin.IntegerAttr)
    operators = prop_def(builtin.ArrayAttr[builtin.StringAttr])
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), IsolatedFromAbove())
    assembly_format = "$symbol attr-dict-with-keyword $body"

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the texts of numbers that are not constants, each once, in order."""
        found = (op.text.data for op in self.body.walk() if isinstance(op, NumberOp))
        return tuple(dict.fromkeys(text for text in found if constant_of(text) is None))


@irdl_op_definition
class ReadOp(_LairOp):
    """An array of the program: an input, a weight or a buffer; contiguous if it has no strides."""

    name = "lair.read"
    symbol = prop_def(builtin.StringAttr)
    offset = opt_prop_def(builtin.IntegerAttr)
    strides = opt_prop_def(builtin.DenseArrayBase)
    out = result_def(builtin.TensorType)
    assembly_format = "$symbol attr-dict `:` type($out)"

    @classmethod
    def of(cls, array: Array, kind: builtin.TensorType[Attribute]) -> Self:
        """Return the operator that reads an array."""
        properties: dict[str, Attribute] = {"symbol": builtin.StringAttr(array.name)}
        if array.offset or not array.is_contiguous:
            properties["offset"] = builtin.IntegerAttr(array.offset, builtin.i64)
            properties["strides"] = builtin.DenseArrayBase.from_list(builtin.i64, array.strides)
        return cls(properties=properties, result_types=[kind])

    @property
    def array(self) -> Array:
        """The array that it reads."""
        kind = type_of(self.out)
        place: tuple[int, tuple[int, ...]] = (0, ())
        if self.offset is not None and self.strides is not None:
            place = self.offset.value.data, tuple(map(int, self.strides.iter_values()))
        return Array(self.symbol.data, shape_of(kind), dtype_of(kind), *place)


@irdl_op_definition
class WriteOp(_LairOp):
    """Writes a value to an array of the program."""

    name = "lair.write"
    value = operand_def(builtin.TensorType)
    symbol = prop_def(builtin.StringAttr)
    assembly_format = "$value `to` $symbol attr-dict `:` type($value)"


@irdl_op_definition
class ViewOp(_LairOp):
    """The same elements with another shape and the same rows."""

    name = "lair.view"
    value = operand_def(builtin.TensorType)
    out = result_def(builtin.TensorType)
    assembly_format = "$value attr-dict `:` type($value) `to` type($out)"


@irdl_op_definition
class GenericOp(_LairOp):
    """The body at every point of an iteration space; maps give the elements of operands and result.

    Reductions add the values that the body yields.
    Source: MLIR's linalg.generic, with its indexing maps and iterator types
    """

    name = "lair.generic"
    ins = var_operand_def(builtin.TensorType)
    maps = prop_def(builtin.ArrayAttr[builtin.AffineMapAttr])
    iterators = prop_def(builtin.ArrayAttr[builtin.StringAttr])
    out = result_def(builtin.TensorType)
    body = region_def("single_block")
    assembly_format = "$ins attr-dict-with-keyword $body `:` functional-type($ins, $out)"


@irdl_op_definition
class NumberOp(_LairOp):
    """A number known before the loop; `text` may depend on the step."""

    name = "lair.number"
    text = prop_def(builtin.StringAttr)
    out = result_def()
    assembly_format = "$text attr-dict `:` type($out)"


@irdl_op_definition
class ScalarOp(_LairOp):
    """A function of numbers, by name; `options` are its constants."""

    name = "lair.scalar"
    function = prop_def(builtin.StringAttr)
    options = prop_def(builtin.DictionaryAttr)
    args = var_operand_def()
    out = result_def()
    assembly_format = "$function `(` $args `)` attr-dict `:` functional-type($args, $out)"


@irdl_op_definition
class YieldOp(_LairOp):
    """The value of the body."""

    name = "lair.yield"
    value = operand_def()
    traits = traits_def(IsTerminator())
    assembly_format = "$value attr-dict `:` type($value)"


LAIR = Dialect(
    "lair",
    [KernelOp, ReadOp, WriteOp, ViewOp, GenericOp, NumberOp, ScalarOp, YieldOp],
    [],
)


def constant_of(text: str) -> float | None:
    """Return the value of a number's text, None if it depends on the step."""
    try:
        return float(text)
    except ValueError:
        return None


def block(arguments: Sequence[Attribute] = ()) -> Region:
    return Region(Block(arg_types=arguments))


def print_kernels(kernels: Sequence[KernelOp]) -> str:
    """Print kernels as text, which `parse_kernels` reads."""
    return print_module_of(kernels)


def parse_kernels(text: str, name: str = "<text>") -> list[KernelOp]:
    """Parse kernels from text.

    Raises: xDSL's ParseError with line and column
    """
    context = Context()
    context.load_dialect(builtin.Builtin)
    context.load_dialect(LAIR)
    module = Parser(context, text, name).parse_module()
    return [op for op in module.ops if isinstance(op, KernelOp)]
