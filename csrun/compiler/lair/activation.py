"""Activation operators, and what the texts of `activation_code` find bound."""

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import FloatAttr, StringAttr
from xdsl.ir import Operation

from csrun.compiler.lair.activation_code import CODES


@dataclass(frozen=True)
class Activation:
    """One activation operator of a model, matched; `options` are its numbers by name."""

    kind: str
    options: tuple[tuple[str, float], ...]


def constants(dtype: str) -> dict[str, str]:
    """Names that the texts expect bound, for an element type: names and expressions."""
    return {
        "zero": f"np.zeros((), '{dtype}')",
        "bits": f"np.dtype('i{np.dtype(dtype).itemsize}')",
    }


def activation_of(operation: Operation) -> Activation | None:
    """The activation, forward or backward, that an operator is."""
    kind = operation.name.removeprefix("cirh.")
    if operation.properties.get("approximate") == StringAttr("tanh"):
        kind += "_tanh"
    if kind not in CODES:
        return None
    numbers = {n: v.value.data for n, v in operation.properties.items() if isinstance(v, FloatAttr)}
    return Activation(kind, tuple(sorted(numbers.items())))
