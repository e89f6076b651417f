"""Base class of all CIRH operators: name scope, and result type inferred from operands.

`infer` is the only definition of an operator's types: the builder calls it to create the result,
the verifier to check it. `gradients` is its backward rule, `compute` its definition.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from xdsl.dialects.builtin import (
    BoolAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    f64,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    operand_def,
    opt_prop_def,
    result_def,
)
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.types import Tensor, dtype_of, shape_of, text_of, type_of

if TYPE_CHECKING:
    from csrun.cirh.backward import Backward, Gradients

Types = Sequence[Tensor]
Results = Tensor | tuple[Tensor, ...] | None
Properties = Mapping[str, Attribute]
Value = SSAValue
Plain = str | bool | int | float | tuple[int, ...] | tuple[float, ...] | Attribute

ASSEMBLY = "operands attr-dict `:` functional-type(operands, results)"
EFFECT_ASSEMBLY = "operands attr-dict `:` type(operands)"


def attribute(value: Plain) -> Attribute:
    """Return the attribute of a Python value."""
    match value:
        case Attribute():
            return value
        case bool():
            return BoolAttr.from_bool(value)
        case str():
            return text(value)
        case int():
            return whole(value)
        case float():
            return real(repr(float(value)))
        case tuple():
            if any(isinstance(item, float) for item in value):
                return DenseArrayBase.from_list(f64, [float(item) for item in value])
            return DenseArrayBase.from_list(i64, [int(item) for item in value])


@cache
def text(value: str) -> StringAttr:
    """Return a string attribute; equal ones are one object."""
    return StringAttr(value)


@cache
def whole(value: int) -> IntegerAttr:
    """Return an integer attribute; equal ones are one object."""
    return IntegerAttr(value, i64)


@cache
def real(value: str) -> FloatAttr:
    """Return a number attribute, cached by text, since 0.0 equals -0.0 but is another number."""
    return FloatAttr(float(value), f64)


def plain(value: Attribute) -> float | str | None:
    """Return the number or text of an attribute, if it is one."""
    match value:
        case FloatAttr() | IntegerAttr():
            return value.value.data
        case StringAttr():
            return value.data
        case _:
            return None


class Reads(Enum):
    """Layouts of operands that an operator's kernel reads; others are copied first."""

    STRIDED = auto()
    MATRICES = auto()  # of which BLAS accepts the last two axes
    LAST_AXIS = auto()  # contiguous along the last axis
    CONTIGUOUS = auto()


class ResultLayout(Enum):
    """Layouts of a result in memory: contiguous, rows with gaps, any strides."""

    DENSE = auto()
    ROWS = auto()
    STRIDED = auto()


class CirhOp(IRDLOperation):
    """An operator; `scope` is the name scope of its layer."""

    irdl_options = (ParsePropInAttrDict(),)
    scope = opt_prop_def(StringAttr)

    #: Operands in which the operator is jointly linear: add {0, 1}, mul {0} and {1}.
    LINEAR_IN: ClassVar[tuple[frozenset[int], ...]] = ()
    #: Whether it is a sum that can be accumulated in place.
    ADDS_UP: ClassVar[bool] = False
    #: Whether it is folded if all its operands are constants.
    FOLDS: ClassVar[bool] = False
    RESULT_LAYOUT: ClassVar[ResultLayout] = ResultLayout.DENSE
    #: Text form, in MLIR's declarative format. xDSL's `assembly_format` would compile it when the
    #: class
    #: is created, though most are never printed or parsed.
    FORM: ClassVar[str] = ASSEMBLY
    READS: ClassVar[Reads] = Reads.STRIDED
    #: Operands, by name, that are read at any strides, so they may be parts of a concatenation.
    READS_IN_PLACE: ClassVar[tuple[str, ...]] = ()
    #: Operands, by name, that the result may overwrite, element by element.
    WRITES_OVER: ClassVar[tuple[str, ...]] = ()
    #: Operands, by name, that may be constants in the kernel's text; others must be arrays.
    TAKES_TEXT: ClassVar[tuple[str, ...]] = ()
    #: Python expression of the result, if all elements of the operands are one number.
    NUMBER: ClassVar[str | None] = None
    #: Whether it copies its operands, which may then be computed in place of the result.
    COPIES: ClassVar[bool] = False
    #: Whether an operand without samples is repeated for each sample.
    BY_SAMPLE: ClassVar[bool] = False
    #: Whether a kernel computes it; leaves and views have none.
    NEEDS_KERNEL: ClassVar[bool] = True

    @property
    def result_layout(self) -> ResultLayout:
        """Return the allowed memory layouts of its result."""
        return self.RESULT_LAYOUT

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Results:
        """Return the type of the result, of each if there are several, None for an operator without
        one.

        Raises: VerifyException if operands or properties do not fit
        """
        raise NotImplementedError(cls.name)

    def gradients(self, back: "Backward") -> "Gradients":
        """Return the gradient of each operand, None if it has none or needs none.

        After ATen's derivative formulas.

        Raises: VerifyException for an operand that must not be trained
        """
        raise NotImplementedError(self.name)

    def compute(self, *operands: Any, **unused: Any) -> Any:
        """Return the result by its NumPy definition; a tuple if there are several."""
        raise NotImplementedError(self.name)

    @classmethod
    def operand_name(cls, index: int) -> str:
        """Return the name of an operand by its index; a variadic one is the last, and has
        several.
        """
        names = [name for name, _ in cls.get_irdl_definition().operands]
        return names[min(index, len(names) - 1)]

    @classmethod
    def has_gradient(cls) -> bool:
        """Return whether there is a rule for the backward pass."""
        return cls.gradients is not CirhOp.gradients

    @classmethod
    def computes(cls) -> bool:
        """Return whether there is a definition in NumPy."""
        return cls.compute is not CirhOp.compute

    @classmethod
    def of(cls, operands: Sequence[Value], **properties: Plain) -> Self:
        """Create an operator whose results have the types that follow from its operands."""
        attributes = {name: attribute(value) for name, value in properties.items()}
        results = _each(cls.infer([type_of(o) for o in operands], attributes))
        return cls.create(operands=operands, result_types=results, properties=attributes)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Parse an operator in its text form."""
        return _form(cls).parse(parser, cls)

    def print(self, printer: Printer) -> None:
        """Print it in its text form."""
        _form(type(self)).print(printer, self)

    def verify_(self) -> None:
        """Check the results' types.

        Raises: VerifyException naming the operator, its scope, the rule and what was found
        """
        where = f"{self.name} in {self.where}"
        try:
            expected = _each(self.infer([type_of(o) for o in self.operands], self.properties))
        except VerifyException as error:
            raise VerifyException(f"{where}: {error}") from error
        found = tuple(result.type for result in self.results)
        if found != expected:
            raise VerifyException(f"{where}: result must be {_text(expected)}, got {_text(found)}")

    @property
    def where(self) -> str:
        """Name of the layer, for messages."""
        return self.scope.data if self.scope else "the model"


@cache
def _form(kind: type[CirhOp]) -> FormatProgram:
    return FormatProgram.from_str(kind.FORM, kind.get_irdl_definition())


def _each(results: Results) -> tuple[Tensor, ...]:
    if results is None:
        return ()
    return results if isinstance(results, tuple) else (results,)


def _text(types: Sequence[Attribute]) -> str:
    return ", ".join(map(str, types)) or "none"


class ElementwiseOp(CirhOp):
    """Each number of the result is a function of one number of each operand; operands broadcast."""

    BY_SAMPLE: ClassVar = True
    #: Whether the result of integers is not a float.
    KEEPS_INTEGERS: ClassVar[bool] = False

    @staticmethod
    def formula(*operands: Any, **options: Any) -> Any:
        """Return the function in NumPy's ufuncs and `where`, and those of
        csrun.cirh.math_functions.

        The reference evaluates it; the compiler traces it, and the program makes the same calls in
        the same order. Options are the properties, by name.
        """
        raise NotImplementedError

    @classmethod
    def has_formula(cls) -> bool:
        """Return whether the function is given as a formula."""
        return cls.formula is not ElementwiseOp.formula

    @classmethod
    def computes(cls) -> bool:
        return cls.has_formula() or cls.compute is not ElementwiseOp.compute

    @property
    def options(self) -> dict[str, float | str]:
        """Properties that are numbers or texts, by name, without the scope."""
        return {
            name: found
            for name, value in self.properties.items()
            if name != "scope" and (found := plain(value)) is not None
        }

    def compute(self, *operands: Any) -> Any:
        """Evaluate the formula; the result has an operand's type, unless it is boolean."""
        found = np.asarray(self.formula(*operands, **self.options))
        if found.dtype == bool or found.dtype in {operand.dtype for operand in operands}:
            return found
        return found.astype(operands[0].dtype)

    @property
    def result_layout(self) -> ResultLayout:
        """Return the layout; an operator along an axis is not a loop over rows."""
        return ResultLayout.DENSE if "dim" in self.properties else ResultLayout.ROWS


class UnaryOp(ElementwiseOp):
    """One operand, and a result of the same type; with a `dim`, elementwise except along that
    axis.
    """

    WRITES_OVER: ClassVar[tuple[str, ...]] = ("x",)

    x = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's type."""
        return types[0]


class BackwardOp(ElementwiseOp):
    """A gradient and a saved tensor of the same type, which is also the result's."""

    LINEAR_IN: ClassVar = (frozenset({0}),)
    WRITES_OVER: ClassVar[tuple[str, ...]] = ("grad",)

    grad = operand_def(TensorType)
    saved = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The gradient's type."""
        require_same(types[0], types[1])
        return types[0]


def require_same(a: Tensor, b: Tensor) -> None:
    """Raises: VerifyException unless both types are equal"""
    if a != b:
        raise VerifyException(f"operands must have the same type, got {a} and {b}")


def require_rank(kind: Tensor, rank: int, what: str) -> None:
    """Raises: VerifyException unless the tensor has `rank` axes"""
    if len(shape_of(kind)) != rank:
        raise VerifyException(f"{what} must have {rank} axes, got shape {text_of(kind)}")


def require_same_dtype(types: Types) -> None:
    """Raises: VerifyException unless all element types are equal"""
    if len({dtype_of(t) for t in types}) > 1:
        names = ", ".join(dtype_of(t) for t in types)
        raise VerifyException(f"operands must have the same element type, got {names}")


def ints(properties: Properties, name: str) -> tuple[int, ...]:
    """A property that is a list of integers."""
    value = properties[name]
    if not isinstance(value, DenseArrayBase):
        raise VerifyException(f"{name} must be an array of integers, got {value}")
    return tuple(int(v) for v in value.iter_values())


def integer(properties: Properties, name: str) -> int:
    """A property that is an integer."""
    value = properties[name]
    if not isinstance(value, IntegerAttr):
        raise VerifyException(f"{name} must be an integer, got {value}")
    return value.value.data


def number(properties: Properties, name: str) -> float:
    """A property that is a number."""
    value = properties[name]
    if not isinstance(value, FloatAttr):
        raise VerifyException(f"{name} must be a number, got {value}")
    return float(value.value.data)


def axis(properties: Properties, kind: Tensor, name: str = "dim") -> int:
    """Return a property that is an axis of `kind`, as a number from 0."""
    value, rank = integer(properties, name), len(shape_of(kind))
    if not 0 <= value < rank:
        raise VerifyException(f"{name} must be in 0..{rank - 1}, got {value}")
    return value


__all__ = [
    "ASSEMBLY",
    "EFFECT_ASSEMBLY",
    "BackwardOp",
    "CirhOp",
    "ElementwiseOp",
    "Plain",
    "Properties",
    "Reads",
    "ResultLayout",
    "Results",
    "Types",
    "UnaryOp",
    "Value",
    "attribute",
    "axis",
    "integer",
    "ints",
    "number",
    "plain",
    "require_rank",
    "require_same",
    "require_same_dtype",
]
