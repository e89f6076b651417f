"""Rounding to 16-bit formats in PyTorch, by definition: the oracle of mixed precision."""

from collections.abc import Callable
from typing import Any

from csrun.base.half_formats import HalfFormat


def rounded(torch: Any, kind: HalfFormat, x: Any) -> Any:
    """Nearest numbers of a format, ties to even, in x's type."""
    _, exponent = torch.frexp(x)
    least = 2 - kind.bias  # frexp's exponent of the smallest normal number
    unit = torch.ldexp(torch.ones_like(x), exponent.clamp(min=least) - 1 - kind.mantissa_bits)
    found = torch.round(x / unit) * unit
    return found.where(found.abs() <= kind.largest, x.sign() * torch.inf)


def storing(torch: Any, kind: HalfFormat) -> Callable[[Any], Any]:
    """Operator that rounds to a format: values forward, gradients backward."""

    class Storing(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return rounded(torch, kind, x)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return rounded(torch, kind, gradient)

    store: Callable[[Any], Any] = Storing.apply
    return store
