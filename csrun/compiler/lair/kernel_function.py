"""The NumPy form of a kernel as a function of program.py.

    relu_3 = relu_3f2a9c11(mm, bias)
    relu_3()

A function is given arrays once, and returns what each step calls, with the inputs of its batch and
the numbers of the step. Kernels that compute the same of arrays of one layout are one function.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from csrun.base.identifier import identifier
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import INPUT
from csrun.compiler.graph.kernel import Name
from csrun.compiler.lair.formula_trace import is_ufunc
from csrun.compiler.lair.text import LoopText, TilePlace

DIGITS = 8  # of the hash in a name
#: Names that a parameter does not take.
_TAKEN = frozenset(
    {
        *("copyto", "dot", "inf", "np", "rows", "run", "special", "step", "tiles"),
        *("add_reduce", "maximum_reduce", "row_tiles", "float", "len", "range"),
    }
)


def short_hash(text: str) -> str:
    """The part of a hash that tells the texts of a program apart."""
    return sha256(text.encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class KernelFunction:
    """A function of the program.

    parameters: arrays that it is bound to. inputs: arrays of the batch. numbers: texts of those
    that come with each call. is_flat: whether its arrays are of any length.
    """

    stem: str
    text: LoopText
    numbers: tuple[str, ...]
    is_flat: bool = False

    @property
    def parameters(self) -> tuple[Array, ...]:
        return tuple(a for a in self._arrays if not a.name.startswith(INPUT))

    @property
    def inputs(self) -> tuple[Array, ...]:
        return tuple(a for a in self._arrays if a.name.startswith(INPUT))

    @cached_property
    def name(self) -> str:
        """The stem, and a hash of what it computes."""
        return f"{self.stem}_{short_hash(self.computed)}"

    @cached_property
    def computed(self) -> str:
        """Text that two functions have in common if they compute the same."""
        arrays = self._arrays
        layout = [a.dtype if self.is_flat else (a.dtype, a.shape, a.strides) for a in arrays]
        return repr((self._body, layout))

    def lines(self) -> list[str]:
        """Its text."""
        parameters = ", ".join(self._names[array] for array in self.parameters)
        return [f"def {self.name}({parameters}):", *_indented(self._body)]

    def bind(self, variable: str, name: Name) -> str:
        """The line that binds arrays of the program."""
        return f"{variable} = {self.name}({', '.join(map(name, self.parameters))})"

    def call(self, variable: str, name: Name) -> str:
        """The line of a step."""
        return f"{variable}({', '.join([*map(name, self.inputs), *self.numbers])})"

    @cached_property
    def _arrays(self) -> tuple[Array, ...]:
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
    def _names(self) -> dict[Array, str]:
        """The parameter of each array: the last part of its name, without the number there."""
        found: dict[Array, str] = {}
        taken = {*_TAKEN, *self._arguments.values()}
        for array in self._arrays:
            stem = re.sub(r"(?<=\D)_\d+$", "", identifier(array.name.rpartition("/")[2]))
            name, count = stem, 1
            while is_ufunc(name) or {name, f"{name}_rows"} & taken:
                name, count = f"{stem}_{count}", count + 1
            taken |= {name, f"{name}_rows"}
            found[array] = name
        return found

    @cached_property
    def _arguments(self) -> dict[str, str]:
        """The parameter of each number: its text, if that is a name or a field of the step."""
        names = {}
        for place, text in enumerate(self.numbers):
            is_name = re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", text)
            names[text] = text.replace(".", "_") if is_name else f"number_{place}"
        return names

    @cached_property
    def _body(self) -> list[str]:
        name, text = self._variable, _with_numbers(self.text, self._arguments)
        arguments = [*(self._names[array] for array in self.inputs), *self._arguments.values()]
        return [
            *(self._cut() if self.is_flat else text.prepare(name)),
            "",
            f"def run({', '.join(arguments)}):",
            *_indented(text.emit(name)),
            "",
            "return run",
        ]

    def _variable(self, array: Array) -> str:
        return self._names[array]

    def _cut(self) -> list[str]:
        """Tiles of arrays whose length the function is told."""
        text = self.text
        assert not text.fixed, "formulas of updates need none"
        names = {a: self._names[text.sized(a)] for a in (*text.tiled, *text.own)}
        arrays, tiles = (", ".join(names[a] for a in each) for each in (text.tiled, text.own))
        rows = f"len({names[text.tiled[0]]})"
        return [f"{text.pieces} = row_tiles({rows}, {text.tile}, [{arrays}], [{tiles}])"]


def _with_numbers(text: LoopText, names: Mapping[str, str]) -> LoopText:
    """The text with parameters in place of the numbers of a step."""
    lines = (
        replace(
            line, places=tuple(names.get(p, p) if isinstance(p, str) else p for p in line.places)
        )
        for line in text.lines
    )
    return replace(text, lines=tuple(lines))


def _indented(lines: Sequence[str] | Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
