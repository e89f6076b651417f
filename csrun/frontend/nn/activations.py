"""Activation functions."""

from collections.abc import Callable

from csrun.cirh.ops.activation import ReluOp
from csrun.frontend.nn.errors import TraceError, located, user_line
from csrun.frontend.nn.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


def relu(x: Tensor) -> Tensor:
    """max(x, 0), elementwise."""
    with located("relu"):
        return x.tracer.emit(ReluOp, x)


ACTIVATIONS: dict[str, Activation] = {"relu": relu}


def activation(name: str | None) -> Activation | None:
    """The activation function of this name, as layers take it.

    Raises: TraceError for an unknown name
    """
    if name is None:
        return None
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise TraceError(f"{user_line()}: activation must be one of {known}, got {name!r}")
    return ACTIVATIONS[name]
