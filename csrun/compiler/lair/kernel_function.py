"""Kernels as functions of program.py; kernels with equal text share a function.

    relu_3 = relu_3f2a9c11(mm, bias)
    relu_3()

A function is called once with arrays, and returns the function of a step, which takes the inputs of
the batch and the numbers of the step. Kernels with the same computation on arrays of the same
layout share a function.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from csrun.base.identifier import identifier
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Name
from csrun.compiler.lair.formula_trace import is_ufunc
from csrun.compiler.lair.text import LoopText, TilePlace
from csrun.executable import INPUT

DIGITS = 8  # characters of the hash in a name
#: Names that cannot be parameters.
TAKEN = frozenset(
    {
        *("copyto", "dot", "inf", "np", "rows", "run", "runtime", "special", "step", "tiles"),
        *("add_reduce", "maximum_reduce", "row_tiles", "float", "len", "range"),
    }
)


def short_hash(text: str) -> str:
    """Return the prefix of a hash that distinguishes the texts of a program."""
    return sha256(text.encode()).hexdigest()[:DIGITS]


class ProgramFunction(ABC):
    """Function of the program; its name is a stem and a hash of its computation.

    numbers: texts of the numbers passed with each call.
    is_flat: whether its arrays may have any length.
    bound_names: what it is bound to besides arrays.
    """

    stem: str
    numbers: tuple[str, ...]
    is_flat: bool = False
    bound_names: tuple[str, ...] = ()

    @property
    @abstractmethod
    def arrays(self) -> tuple[Array, ...]:
        """Arrays of the program, including scratch."""

    @property
    @abstractmethod
    def body(self) -> list[str]:
        """Lines of the function."""

    @property
    @abstractmethod
    def taken(self) -> frozenset[str]:
        """Names that cannot be parameters."""

    @property
    def parameters(self) -> tuple[Array, ...]:
        """Arrays that it is bound to."""
        return tuple(a for a in self.arrays if not a.name.startswith(INPUT))

    @property
    def inputs(self) -> tuple[Array, ...]:
        """Arrays of the batch."""
        return tuple(a for a in self.arrays if a.name.startswith(INPUT))

    @cached_property
    def name(self) -> str:
        """The stem, and a hash of the computation."""
        return f"{self.stem}_{short_hash(self.computed)}"

    @cached_property
    def computed(self) -> str:
        """Text that is equal for two functions with the same computation."""
        layout = [a.dtype if self.is_flat else (a.dtype, a.shape, a.strides) for a in self.arrays]
        return repr((self.body, layout))

    def lines(self) -> list[str]:
        """Return its text."""
        parameters = [*(self.names[array] for array in self.parameters), *self.bound_names]
        return [f"def {self.name}({', '.join(parameters)}):", *indented(self.body)]

    def prepare(self, label: str, name: Name) -> list[str]:
        """Return the line that binds arrays of the program for a kernel of this name."""
        return [self.bind(self._variable(label, name), name)]

    def emit(self, label: str, name: Name) -> list[str]:
        """Return the line of a step."""
        return [self.call(self._variable(label, name), name)]

    def bind(self, variable: str, name: Name) -> str:
        """Return the line that binds a variable."""
        arguments = [*map(name, self.parameters), *self.bound_names]
        return f"{variable} = {self.name}({', '.join(arguments)})"

    def call(self, variable: str, name: Name) -> str:
        """Return the line that calls a bound variable."""
        return f"{variable}({', '.join([*map(name, self.inputs), *self.numbers])})"

    def _variable(self, label: str, name: Name) -> str:
        # Kernels with one name are bound to different arrays.
        return f"run_{identifier(label)}_{short_hash(self.bind('', name))}"

    @cached_property
    def names(self) -> dict[Array, str]:
        """Return the parameter of each array: the last component of its name, without its
        number.
        """
        found: dict[Array, str] = {}
        taken = set(self.taken)
        for array in self.arrays:
            stem = identifier(re.sub(r"(?<=\D)_\d+$", "", array.name.rpartition("/")[2]))
            name, count = stem, 1
            while is_ufunc(name) or {name, f"{name}_rows"} & taken:
                name, count = f"{stem}_{count}", count + 1
            taken |= {name, f"{name}_rows"}
            found[array] = name
        return found


@dataclass(frozen=True)
class KernelFunction(ProgramFunction):
    """NumPy form of a LAIR loop."""

    stem: str
    text: LoopText
    numbers: tuple[str, ...]
    is_flat: bool = False

    @property
    def taken(self) -> frozenset[str]:
        return TAKEN | {*self._arguments.values()}

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Arrays of the program and of scratch, in the order of the calls."""
        text = self.text
        places: list[TilePlace] = []
        for line in text.lines:
            places += [place for place in line.places if isinstance(place, TilePlace)]
            if line.part is not None and text.is_cut:
                places.append(line.part)
        arrays = (*(place.array for place in places), *text.tiled, *text.own, *text.sums)
        return tuple(dict.fromkeys(text.sized(a) for a in arrays if a not in text.fixed))

    @cached_property
    def _arguments(self) -> dict[str, str]:
        """Return the parameter of each number: its text, if that is a name or a field of the
        step.
        """
        names = {}
        for place, text in enumerate(self.numbers):
            is_name = re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", text)
            names[text] = text.replace(".", "_") if is_name else f"number_{place}"
        return names

    @cached_property
    def body(self) -> list[str]:
        name, text = self.names.__getitem__, _with_numbers(self.text, self._arguments)
        arguments = [*(self.names[array] for array in self.inputs), *self._arguments.values()]
        return [
            *([*text.imports, *self._cut()] if self.is_flat else text.prepare(name)),
            "",
            f"def run({', '.join(arguments)}):",
            *indented(text.emit(name)),
            "",
            "return run",
        ]

    def _cut(self) -> list[str]:
        """Return the tiles of arrays whose length is passed to the function."""
        text = self.text
        assert not text.fixed, "formulas of updates need none"
        names = {a: self.names[text.sized(a)] for a in (*text.tiled, *text.own)}
        arrays, tiles = (", ".join(names[a] for a in each) for each in (text.tiled, text.own))
        rows = f"len({names[text.tiled[0]]})"
        return [f"{text.pieces} = row_tiles({rows}, {text.tile}, [{arrays}], [{tiles}])"]


def _with_numbers(text: LoopText, names: Mapping[str, str]) -> LoopText:
    """Return the text with parameters in place of the numbers of a step."""
    lines = (
        replace(
            line, places=tuple(names.get(p, p) if isinstance(p, str) else p for p in line.places)
        )
        for line in text.lines
    )
    return replace(text, lines=tuple(lines))


def indented(lines: Sequence[str] | Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
