"""PyTorch's own databases: its operators with sample inputs, its optimizers with options.

They are part of torch, and made for its tests: of what those import, `expecttest` need not be
installed.
"""

import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="PyTorch has the samples")


@contextmanager
def _expecttest() -> Iterator[None]:
    """A module of that name for as long as PyTorch's are imported; nothing here expects a text."""
    if "expecttest" in sys.modules:
        yield
        return
    module = ModuleType("expecttest")
    module.TestCase = unittest.TestCase
    sys.modules["expecttest"] = module
    yield
    del sys.modules["expecttest"]


with _expecttest():
    from torch.testing._internal.common_device_type import toleranceOverride
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_optimizers import optim_db


@cache
def operator(name: str, variant: str = ""):
    """The entry of an operator."""
    (found,) = [o for o in op_db if (o.name, o.variant_test_name) == (name, variant)]
    return found


def names() -> set[str]:
    """Of all operators."""
    return {o.name for o in op_db}


def samples(name: str, variant: str, dtype: str) -> list:
    """Sample inputs of an operator, the same in each run."""
    torch.manual_seed(7)
    entry = operator(name, variant)
    return list(entry.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False))


def tolerances(name: str, variant: str, dtype: str) -> dict[str, float]:
    """What PyTorch's tests allow this operator; nothing where that is torch.testing's own."""
    kind, found = getattr(torch, dtype), {}
    for info in operator(name, variant).decorators or ():
        for decorator in getattr(info, "decorators", [info]):
            if isinstance(decorator, toleranceOverride) and kind in decorator.d:
                own = decorator.d[kind]
                found = {
                    "atol": max(own.atol, found.get("atol", 0.0)),
                    "rtol": max(own.rtol, found.get("rtol", 0.0)),
                }
    if not found:
        return {}
    default = torch.testing._comparison.default_tolerances(kind)
    return {"rtol": max(found["rtol"], default[0]), "atol": max(found["atol"], default[1])}


def optimizers() -> dict[str, object]:
    """The entries of optimizers by name."""
    return {entry.optim_cls.__name__: entry for entry in optim_db}
