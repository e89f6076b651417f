"""Activation functions: how a layer's kernel takes them in, and kernels for those on their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import FloatAttr, StringAttr
from xdsl.ir import Operation

from csrun.compiler.array import Array
from csrun.compiler.kernels.activation_code import CODES, Code
from csrun.compiler.kernels.base import Name


@dataclass(frozen=True)
class Activation:
    """One activation operator of a model, matched; `options` are its numbers by name."""

    kind: str
    options: tuple[tuple[str, float], ...]

    @property
    def code(self) -> Code:
        return CODES[self.kind]

    def scratch(self, like: Array) -> tuple[Array, ...]:
        """Its scratch arrays, named and shaped after the one array that its lines change."""
        kinds = {"f": like.dtype, "b": "bool"}
        return tuple(
            Array(f"{like.stem}/{self.kind}_{number}", like.shape, kinds[kind])
            for number, kind in enumerate(self.code.scratch)
        )

    def prepare(self, array: Array) -> list[str]:
        """Lines that bind once what the text needs: zeros, and functions that NumPy lacks."""
        lines = ["from csrun.executable import special"] if self.code.needs_special else []
        if self.kind == "relu":
            zeros = f"np.zeros({_zeros_shape(array)}, '{array.dtype}')"
            return [*lines, f"{zeros_name(array)} = {zeros}"]
        return [*lines, *(f"{name} = {text}" for name, text in constants(array.dtype).items())]

    def emit(self, name: Name, operand: Array, other: Array, scratch: Sequence[Array]) -> list[str]:
        """The lines: forward from operand to other, backward over operand from the saved other."""
        names = [name(array) for array in (operand, other, *scratch)]
        if self.kind == "relu":
            return [f"maximum({names[0]}, {zeros_name(operand)}, out={names[1]})"]
        return self.code.text(dict(self.options), *names)


def constants(dtype: str) -> dict[str, str]:
    """What the texts find bound, for operands of an element type: names and expressions."""
    return {
        "zero": f"np.zeros((), '{dtype}')",
        "bits": f"np.dtype('i{np.dtype(dtype).itemsize}')",
    }


LARGEST_ZEROS = 16 * 1024  # elements; for more, one row of zeros is broadcast


def zeros_name(array: Array) -> str:
    """The variable of the zeros that an array is compared with.

    NumPy compares two arrays several times faster than one and a 0.
    """
    return "zeros_" + "_".join(map(str, _zeros_shape(array)))


def _zeros_shape(array: Array) -> tuple[int, ...]:
    return array.shape if prod(array.shape) <= LARGEST_ZEROS else array.shape[-1:]


def activation_of(operation: Operation) -> Activation | None:
    """The activation, forward or backward, that an operator is."""
    kind = operation.name.removeprefix("cirh.")
    if operation.properties.get("approximate") == StringAttr("tanh"):
        kind += "_tanh"
    if kind not in CODES:
        return None
    numbers = {n: v.value.data for n, v in operation.properties.items() if isinstance(v, FloatAttr)}
    return Activation(kind, tuple(sorted(numbers.items())))
