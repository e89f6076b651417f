"""Activation functions, elementwise."""

import difflib
from collections.abc import Callable

from csrun.cirh.ops.activation import (
    EluOp,
    HardtanhOp,
    LeakyReluOp,
    ReluOp,
    SigmoidOp,
    SiluOp,
    SoftplusOp,
    SoftshrinkOp,
    TanhOp,
)
from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.ops.gelu import GeluOp
from csrun.nn.errors import TraceError, located, user_line
from csrun.nn.tensor import Tensor, require_floats, require_tensor

__all__ = [
    "elu",
    "gelu",
    "gelu_tanh",
    "leaky_relu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "tanh",
]

Activation = Callable[[Tensor], Tensor]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, section 2


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return _apply("relu", ReluOp, x)


def relu6(x: Tensor) -> Tensor:
    """x clipped to 0..6."""
    return _apply("relu6", HardtanhOp, x, min_val=0.0, max_val=6.0)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where positive, else negative_slope * x, for a slope in [0, 1]."""
    return _apply("leaky_relu", LeakyReluOp, x, negative_slope=float(negative_slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where positive, else alpha * (exp(x) - 1), for a finite alpha >= 0."""
    return _apply("elu", EluOp, x, alpha=float(alpha), scale=1.0)


def selu(x: Tensor) -> Tensor:
    """Scaled elu that preserves mean 0 and variance 1."""
    return _apply("selu", EluOp, x, alpha=SELU_ALPHA, scale=SELU_SCALE)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """x P(N(0, 1) < x), exact or in its tanh approximation."""
    return _apply("gelu", GeluOp, x, approximate="tanh" if approximate else "none")


def gelu_tanh(x: Tensor) -> Tensor:
    """gelu in its tanh approximation."""
    return gelu(x, approximate=True)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _apply("sigmoid", SigmoidOp, x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return _apply("tanh", TanhOp, x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), also called swish."""
    return _apply("silu", SiluOp, x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return _apply("softplus", SoftplusOp, x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x - lambd above lambd, x + lambd below -lambd, else 0; lambd >= 0."""
    return _apply("softshrink", SoftshrinkOp, x, lambd=float(lambd))


def _apply(name: str, kind: type[CirhOp], x: Tensor, **options: Plain) -> Tensor:
    """Emit an activation; only those that PyTorch promotes integers for take integers."""
    x = require_tensor(name, x)
    x = x.as_floats() if kind in (SigmoidOp, TanhOp) else require_floats(name, x)
    with located(name):
        return x.tracer.emit(kind, x, **options)


ACTIVATIONS: dict[str, Activation] = {
    "relu": relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "selu": selu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "silu": silu,
    "softplus": softplus,
    "softshrink": softshrink,
}


def activation(given: str | Activation | None) -> Activation | None:
    """Return a layer's activation function, given as a function or by name.

    Raises: TraceError for an unknown name
    """
    if given is None or callable(given):
        return given
    if given not in ACTIVATIONS:
        close = difflib.get_close_matches(str(given), ACTIVATIONS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TraceError(
            f"{user_line()}: activation must be one of {', '.join(ACTIVATIONS)}, "
            f"got {given!r}{hint}"
        )
    return ACTIVATIONS[given]
