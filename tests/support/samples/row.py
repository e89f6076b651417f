"""A row of the oracle's table: an operator of PyTorch's database, and the same with csrun."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

from csrun import nn as csrun_nn


class Skipped(Exception):  # noqa: N818  an event, not an error
    """Raised for a sample that csrun lacks; the message is a key of the table of skips."""


def only(**options: tuple[Any, Any]) -> None:
    """Each option, given as (found, only value): Skipped under its name if it has another one."""
    for name, (found, value) in options.items():
        if isinstance(found, csrun_nn.Tensor) or found != value:
            skip(name)


def skip(reason: str) -> NoReturn:
    """Raises: Skipped"""
    raise Skipped(reason)


class Noted:
    """csrun.nn that records which of its names were used."""

    def __init__(self, module: ModuleType = csrun_nn) -> None:
        self._module = module
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(self._module, name)


@dataclass(frozen=True)
class Row:
    """`ours` takes (nn, *arguments of PyTorch's), and gives one tensor, or several of which the
    first one has a gradient.

    dtypes: element types of the samples in addition to floats.
    """

    name: str
    ours: Callable[..., Any]
    variant: str = ""
    dtypes: tuple[str, ...] = ()
    has_gradient: bool = True
    floats: tuple[str, ...] = field(default=("float32", "float64"))

    def __str__(self) -> str:
        parts = [self.name, self.variant, self.ours.__name__.strip("_")]
        return "-".join(part for part in parts if part and part != "<lambda>")


@contextmanager
def given(x: csrun_nn.Tensor, *values: csrun_nn.Tensor) -> Iterator[None]:
    """Layers made inside take these as parameters, in order of their requests.

    Raises: AssertionError for a wrong shape
    """
    rest, tracer = iter(values), x.tracer

    def parameter(name: str, shape: tuple[int, ...], initializer: object) -> csrun_nn.Tensor:
        value = next(rest)
        assert value.shape == tuple(shape), f"{name} is of {shape}, not {value.shape}"
        return value

    tracer.parameter = parameter
    try:
        yield
    finally:
        del tracer.parameter
