"""Rows of PyTorch's operators as users call them, a family in one recorded step.

A row is a function of a linear layer's result and of modules; `with_table` adds a trained tensor
of a sample's shape. All rows of a family are one program: a compile's fixed cost is paid once.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recorded import Beside
from torch import nn

from csrun.base.mode import ExecutionMode

SAMPLES = 4


@dataclass(frozen=True)
class Row:
    """A function of values of this shape a sample, of modules and of a table."""

    function: Callable[..., Any]
    shape: tuple[int, ...]
    modules: tuple[nn.Module, ...] = ()
    has_table: bool = False


def row(function: Callable[..., Any], *shape: int, modules: tuple[nn.Module, ...] = ()) -> Row:
    return Row(function, shape, tuple(modules))


def with_table(*functions: Callable[..., Any], shape: tuple[int, ...] = (3, 6)) -> dict[str, Row]:
    """Rows named after their functions."""
    return {f.__name__: Row(f, shape, has_table=True) for f in functions}


def named(*functions: Callable[..., Any], shape: tuple[int, ...] = (3, 6)) -> dict[str, Row]:
    """Rows named after their functions, which take values alone."""
    return {f.__name__: Row(f, shape) for f in functions}


class Call(nn.Module):
    """A row's layer, function, modules and table."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        width = row.shape[-1]
        self.linear, self.function = nn.Linear(width, width), row.function
        self.inner = nn.ModuleList(deepcopy(row.modules))
        for parameter in self.inner.parameters():  # whatever was drawn before
            nn.init.uniform_(parameter, -0.5, 0.5)
        table = [nn.Parameter(torch.randn(row.shape))] if row.has_table else []
        self.tables = nn.ParameterList(table)

    def forward(self, x: Any) -> Any:
        return self.function(self.linear(x), *self.inner, *self.tables)


class Family(nn.Module):
    """Rows by name, each with its own input."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        super().__init__()
        self.rows = nn.ModuleDict({name: Call(row) for name, row in rows.items()})

    def forward(self, *inputs: Any) -> list[Any]:
        return [part(x) for part, x in zip(self.rows.values(), inputs, strict=True)]


def weighted(out: Any) -> Any:
    """Sum of all values with separate weights."""
    slopes = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).cos().view(out.shape)
    return (out * slopes).sum() / 7


def step(model: nn.Module, batch: tuple[Any, ...]) -> Any:
    model.zero_grad()
    out = model(*batch)
    loss = sum(map(weighted, out if isinstance(out, list) else [out]))
    loss.backward()
    return loss


def beside(rows: Mapping[str, Row], root: Path, mode: Any = ExecutionMode.PIPELINED) -> Beside:
    """The step of a family, recorded."""
    torch.manual_seed(0)
    model = Family(rows).double()
    batch = tuple(torch.randn(SAMPLES, *row.shape).double() for row in rows.values())
    return Beside(model, batch, step, root, mode)


def check_exact(rows: Mapping[str, Row], root: Path) -> None:
    """Compare bits of the interpreter and numbers of the program with PyTorch."""
    beside(rows, root, ExecutionMode.WEIGHT_STREAMING).check(1e-12, 1e-11)


def check_near(rows: Mapping[str, Row], root: Path) -> None:
    """Compare with PyTorch within rounding, as sums are in another order."""
    pair = beside(rows, root)
    (loss, gradients), (again, interpreted) = pair.theirs(), pair.interpreted()
    compiled, ours = pair.ours()
    assert [again.item(), compiled] == pytest.approx([loss.item()] * 2, rel=1e-10, abs=1e-12)
    assert set(interpreted) == set(gradients) <= set(ours)
    for name, gradient in gradients.items():
        for found in (interpreted[name], ours[name]):
            torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-11, msg=name)
