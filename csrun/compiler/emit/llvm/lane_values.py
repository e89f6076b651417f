"""Types and values of LLVM IR: vectors of 16 lanes, single numbers, masks of the first lanes."""

from dataclasses import dataclass

from csrun.compiler.emit.llvm.literals import FLOATS

LANES = 16
_TYPES = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "bfloat",
    "int8": "i8",
    "int16": "i16",
    "uint16": "i16",
    "int32": "i32",
    "int64": "i64",
    "bool": "i1",
}
_SUFFIXES = {"float": "f32", "double": "f64"}
#: Integer type of a float's size.
BITS_OF = {"float32": "int32", "float64": "int64"}


class NoMachineCodeError(Exception):
    """Part of a kernel has no machine-code form; the NumPy form is used."""


@dataclass(frozen=True)
class Kind:
    """Type of a value."""

    dtype: str
    lanes: int = 1

    @property
    def element(self) -> str:
        """The type of one lane."""
        if self.dtype not in _TYPES:
            raise NoMachineCodeError(f"no values of type {self.dtype}")
        return _TYPES[self.dtype]

    @property
    def ir(self) -> str:
        return self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"

    @property
    def suffix(self) -> str:
        """The type in the name of an intrinsic."""
        element = _SUFFIXES.get(self.element, self.element)
        return element if self.lanes == 1 else f"v{self.lanes}{element}"

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def of(self, dtype: str) -> "Kind":
        """Return a type with as many lanes of another element type."""
        return Kind(dtype, self.lanes)


@dataclass(frozen=True)
class LaneValue:
    """Operand of an instruction: a variable or a constant."""

    text: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.kind.ir} {self.text}"


@dataclass(frozen=True)
class FirstLanes(LaneValue):
    """Mask of the first lanes, whose number is known at code generation."""

    count: int


INDEX = Kind("int64")


def index(number: int) -> LaneValue:
    """Return a constant that counts rows or elements."""
    return LaneValue(str(number), INDEX)


def stored_size(dtype: str) -> int:
    """Return the size of an element in memory, in bytes."""
    return {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "float32": 4}.get(dtype, 8)
