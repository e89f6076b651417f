"""Kernel interface of the compiler: arrays read and written, FLOPs, emitted text."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from xdsl.ir import Operation

from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.graph.graph import Phase

if TYPE_CHECKING:
    from csrun.compiler.graph.graph import Graph


Name = Callable[[Array], str]


@dataclass(frozen=True)
class Kernel(ABC):
    """One matched group of operators. `layer` is the name scope that it belongs to."""

    layer: str

    #: Name of the kernel in reports.
    kind = ""
    phase = Phase.FORWARD

    @property
    @abstractmethod
    def reads(self) -> tuple[Array, ...]:
        """Arrays that it reads, including weights."""

    @property
    @abstractmethod
    def writes(self) -> tuple[Array, ...]:
        """Arrays that it writes."""

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Arrays that it uses while it runs."""
        return ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters whose weights it reads."""
        return tuple(dict.fromkeys(array.name for array in self.reads if array.is_weight))

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""
        return 0

    def adding(self) -> Self:
        """Return the kernel that adds to its parameter's gradient instead of writing it."""
        raise TypeError(f"{self.kind} in {self.layer} cannot add to a gradient")

    @property
    def constants(self) -> tuple[str, ...]:
        """Texts of arrays that `prepare` creates and machine code reads."""
        return ()

    def prepare(self, name: Name) -> list[str]:
        """Lines that run once, when the program is bound: views and small constants."""
        return []

    def check(self, name: Name) -> list[str]:
        """Lines before those of `emit` that raise an error if the values allow no result."""
        return []

    @abstractmethod
    def emit(self, name: Name) -> list[str]:
        """Lines of Python; `name` returns the local variable of an array."""


@dataclass(frozen=True)
class UnaryKernel(Kernel):
    """Kernel from one array to another."""

    x: Array
    out: Array

    @property
    def reads(self) -> tuple[Array, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)


@dataclass(frozen=True)
class FunctionKernel(Kernel):
    """Kernel from several arrays to several others; its scratch is named after the first result."""

    operands: tuple[Array, ...]
    results: tuple[Array, ...]

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.operands

    @property
    def writes(self) -> tuple[Array, ...]:
        return self.results

    def scratch_array(self, what: str, shape: Shape, dtype: str | None = None) -> Array:
        """Return a scratch array of the kernel, by default of the results' type."""
        first = self.results[0]
        return Array(f"{first.stem}/{what}", shape, dtype or first.dtype)


def bound_struct(variable: str, kind: str, fields: Mapping[str, str]) -> str:
    """Return the line that binds a struct of arrays once, for all calls of a kernel."""
    arguments = ", ".join(f"{field}={value}" for field, value in fields.items())
    return f"{variable} = {kind}({arguments})"


#: The import that lines of checks need.
CHECKS = "from csrun.kernels.indexing import require_inside"


def indices_inside(indices: str, size: int, layer: str) -> list[str]:
    """Return the line that raises an error if an index is out of range."""
    return [f"require_inside({indices}, {size}, {f'layer {layer}'!r})"]


#: Returns the kernel of an operator, or several, in program order; None or () if there is none.
Matcher = Callable[[Operation, "Graph"], Kernel | tuple[Kernel, ...] | None]

__all__ = [
    "CHECKS",
    "FunctionKernel",
    "Kernel",
    "Matcher",
    "Name",
    "Phase",
    "bound_struct",
    "indices_inside",
]
