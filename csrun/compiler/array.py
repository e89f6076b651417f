"""Arrays of a program, by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Array:
    """An array of the program. `name` is its place: a buffer, a parameter, a gradient, an input."""

    name: str
    shape: tuple[int, ...]
    dtype: str


#: The sum of the loss over the valid rows of the batch, which the runtime reads.
LOSS = Array("loss", (1,), "float64")
