"""Arrays of a program, by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Array:
    """An array of the program. `name` is its place: a buffer, a parameter, a gradient, an input."""

    name: str
    shape: tuple[int, ...]
    dtype: str
