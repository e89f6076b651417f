"""The NumPy form of a library kernel as a function of program.py.

def layer_norm_3f2a9c11(x, weight, bias, out, mean, rstd, tile):
    from csrun.kernels import normalization
    out_results = normalization.LayerNormResults(out=out, mean=mean, rstd=rstd, tile=tile)

    def run():
        normalization.layer_norm(x, weight, bias, out_results, 1e-05)

    return run
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Kernel
from csrun.compiler.lair.kernel_function import TAKEN, ProgramFunction, indented
from csrun.executable import INPUT

_WORD = re.compile(r"[A-Za-z_]\w*")


class _Placeholders:
    """Placeholder names of arrays that cannot occur in the text, numbered in order of use."""

    def __init__(self) -> None:
        self.arrays: dict[Array, str] = {}

    def __call__(self, array: Array) -> str:
        return self.arrays.setdefault(array, f"_{len(self.arrays)}_")


@dataclass(frozen=True)
class LinesFunction(ProgramFunction):
    """A function with the lines of a kernel, over arrays with local names."""

    stem: str
    kernel: Kernel
    all_arrays: tuple[Array, ...]
    words: frozenset[str]
    numbers: tuple[str, ...]
    bound_names: tuple[str, ...]

    @classmethod
    def of(cls, stem: str, kernel: Kernel) -> Self | None:
        """Return the function of a kernel; None if its binding needs an input of the batch."""
        name = _Placeholders()
        prepared = _words(kernel.prepare(name))
        if any(array.name.startswith(INPUT) for array in name.arrays):
            return None
        emitted = _words(kernel.emit(name))
        return cls(
            stem,
            kernel,
            tuple(name.arrays),
            prepared | emitted,
            ("step",) if "step" in emitted else (),
            ("runtime",) if "runtime" in prepared else (),
        )

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.all_arrays

    @property
    def taken(self) -> frozenset[str]:
        return TAKEN | self.words

    @cached_property
    def body(self) -> list[str]:
        name = self.names.__getitem__
        arguments = [*map(name, self.inputs), *self.numbers]
        prepared, constants = self.kernel.prepare(name), ", ".join(self.kernel.constants)
        return [
            *prepared,
            *([""] if prepared else []),
            f"def run({', '.join(arguments)}):",
            *indented(self.kernel.emit(name)),
            "",
            *([f"run.constants = [{constants}]"] if constants else []),
            "return run",
        ]


def _words(lines: Sequence[str]) -> frozenset[str]:
    return frozenset(_WORD.findall("\n".join(lines)))
