"""Normalization layers, over the last axis."""

from math import prod

from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.normalization import FusedRmsNormOp, NativeLayerNormOp
from csrun.cirh.types import text_of, type_of
from csrun.nn.errors import ShapeError, TraceError, user_line
from csrun.nn.initializers import ones, zeros
from csrun.nn.shapes import view
from csrun.nn.tensor import Tensor


class LayerNorm:
    """(x - mean) / sqrt(variance + epsilon) gamma + beta over the last axis.

    Parameters `<name>/gamma` and `<name>/beta`, both of its length, are made at each call.

    Raises: TraceError for an epsilon that is not positive
    Source: Ba, Kiros and Hinton 2016, section 3
    """

    def __init__(self, epsilon: float = 1e-5, name: str | None = None) -> None:
        self.epsilon = _positive("LayerNorm", epsilon)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ..., N] -> the same

        Raises: ShapeError for a tensor of fewer than two axes
        """
        with x.tracer.layer("layer_norm", self.name) as scope:
            size = _length(x, scope)
            gamma = x.tracer.parameter("gamma", size, ones(size))
            beta = x.tracer.parameter("beta", size, zeros(size))
            return _normalized(NativeLayerNormOp, self.epsilon, x, gamma, beta)


class RMSNorm:
    """x / sqrt(mean(x x) + epsilon) gamma over the last axis.

    The parameter `<name>/gamma`, of its length, is made at each call.

    Raises: TraceError for an epsilon that is not positive
    Source: Zhang and Sennrich 2019, equation 4
    """

    def __init__(self, epsilon: float = 1e-6, name: str | None = None) -> None:
        self.epsilon = _positive("RMSNorm", epsilon)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ..., N] -> the same

        Raises: ShapeError for a tensor of fewer than two axes
        """
        with x.tracer.layer("rms_norm", self.name) as scope:
            size = _length(x, scope)
            gamma = x.tracer.parameter("gamma", size, ones(size))
            return _normalized(FusedRmsNormOp, self.epsilon, x, gamma)


def _positive(what: str, epsilon: float) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon > 0:
        raise TraceError(f"{user_line()}: {what}: epsilon must be positive, got {epsilon!r}")
    return float(epsilon)


def _length(x: Tensor, scope: str) -> tuple[int, ...]:
    if len(x.shape) < 2:
        raise ShapeError(
            f"{user_line()}: layer {scope}: the input must be [batch, ..., features], "
            f"got shape {text_of(type_of(x.value))}"
        )
    return x.shape[-1:]


def _normalized(kind: type[CirhOp], epsilon: float, x: Tensor, *weights: Tensor) -> Tensor:
    rows = view(x, (prod(x.shape[:-1]), x.shape[-1]))
    return view(x.tracer.emit(kind, rows, *weights, eps=epsilon), x.shape)
