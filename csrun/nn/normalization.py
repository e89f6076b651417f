"""Normalization layers."""

from math import prod

from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.batch_norm import NativeBatchNormOp
from csrun.cirh.ops.normalization import FusedRmsNormOp, NativeLayerNormOp
from csrun.cirh.types import text_of, type_of
from csrun.nn.errors import ShapeError, TraceError, user_line
from csrun.nn.initializers import ones, zeros
from csrun.nn.shapes import view
from csrun.nn.tensor import Tensor, require_floats


class LayerNorm:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis.

    Parameters `<name>/gamma` and `<name>/beta`, of the size of that axis, are created at each call.

    Raises: TraceError for an epsilon that is not positive
    Source: Ba, Kiros and Hinton 2016, section 3
    """

    def __init__(self, epsilon: float = 1e-5, name: str | None = None) -> None:
        self.epsilon = _require_positive("LayerNorm", epsilon)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ..., N] -> the same

        Raises: ShapeError for a tensor of fewer than two axes
        """
        with x.tracer.layer("layer_norm", self.name) as scope:
            size = _require_features(x, scope)
            gamma = x.tracer.parameter("gamma", size, ones(size))
            beta = x.tracer.parameter("beta", size, zeros(size))
            return _normalize_rows(NativeLayerNormOp, self.epsilon, x, gamma, beta)


class RMSNorm:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last axis.

    The parameter `<name>/gamma`, of the size of that axis, is created at each call.

    Raises: TraceError for an epsilon that is not positive
    Source: Zhang and Sennrich 2019, equation 4
    """

    def __init__(self, epsilon: float = 1e-6, name: str | None = None) -> None:
        self.epsilon = _require_positive("RMSNorm", epsilon)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ..., N] -> the same

        Raises: ShapeError for a tensor of fewer than two axes
        """
        with x.tracer.layer("rms_norm", self.name) as scope:
            size = _require_features(x, scope)
            gamma = x.tracer.parameter("gamma", size, ones(size))
            return _normalize_rows(FusedRmsNormOp, self.epsilon, x, gamma)


class BatchNorm:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta per channel (axis 1).

    Training uses the mean and variance of the batch, and updates the running statistics by
    running += momentum * (batch - running), with the unbiased variance; evaluation uses the running
    ones. The batch is not split, unless `by_minibatch`: then each minibatch in flight and each
    replica has its own statistics, the running ones are updated by their mean, and results depend
    on how the batch is split.

    Parameters `<name>/gamma` and `<name>/beta` and states `<name>/running_mean` and
    `<name>/running_var`, of the number of channels, are created at each call.

    Raises: TraceError for an epsilon that is not positive, or a momentum outside 0..1
    Source: Ioffe and Szegedy 2015, in the form of torch.nn.BatchNorm2d
    """

    def __init__(
        self,
        momentum: float = 0.1,
        epsilon: float = 1e-5,
        name: str | None = None,
        by_minibatch: bool = False,
    ) -> None:
        if isinstance(momentum, bool) or not isinstance(momentum, int | float):
            momentum = -1.0
        if not 0 <= momentum <= 1:
            raise TraceError(f"{user_line()}: BatchNorm: momentum must be in 0..1, got {momentum}")
        self.momentum = float(momentum)
        self.epsilon = _require_positive("BatchNorm", epsilon)
        self.name = name
        self.by_minibatch = by_minibatch

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, C, ...] -> the same

        Raises: ShapeError for a tensor of fewer than two axes, a batch that is not the first axis,
            or a single value per channel
        """
        tracer = x.tracer
        with tracer.layer("batch_norm", self.name) as scope:
            size, dependence = x.shape[1:2], tracer.dependence(x)
            _require_channels(x, dependence.axis if dependence.outer == 1 else None, scope)
            gamma = tracer.parameter("gamma", size, ones(size))
            beta = tracer.parameter("beta", size, zeros(size))
            running_mean = tracer.state("running_mean", size, zeros(size))
            running_var = tracer.state("running_var", size, ones(size))
            images = require_floats(f"layer {scope}", x)
            out, _, _, next_mean, next_var = tracer.emit_all(
                NativeBatchNormOp,
                view(images, (*x.shape[:2], prod(x.shape[2:]))),
                gamma,
                beta,
                running_mean,
                running_var,
                tracer.valid_samples(),
                rows=dependence.rows,
                momentum=self.momentum,
                eps=self.epsilon,
                **({"by_minibatch": True} if self.by_minibatch else {}),
            )
            tracer.assign(running_mean, next_mean)
            tracer.assign(running_var, next_var)
            return view(out, x.shape)


def _require_channels(x: Tensor, axis: int | None, scope: str) -> None:
    if len(x.shape) < 2 or axis != 0:
        raise ShapeError(
            f"{user_line()}: layer {scope}: the input must be [batch, channels, ...], batch first, "
            f"got shape {text_of(type_of(x.value))}"
        )
    if x.shape[0] * prod(x.shape[2:]) < 2:
        raise ShapeError(
            f"{user_line()}: layer {scope}: the variance needs more than one value per channel, "
            f"got shape {text_of(type_of(x.value))}"
        )


def _require_positive(what: str, epsilon: float) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon > 0:
        raise TraceError(f"{user_line()}: {what}: epsilon must be positive, got {epsilon!r}")
    return float(epsilon)


def _require_features(x: Tensor, scope: str) -> tuple[int, ...]:
    if len(x.shape) < 2:
        raise ShapeError(
            f"{user_line()}: layer {scope}: the input must be [batch, ..., features], "
            f"got shape {text_of(type_of(x.value))}"
        )
    return x.shape[-1:]


def _normalize_rows(kind: type[CirhOp], epsilon: float, x: Tensor, *weights: Tensor) -> Tensor:
    rows = view(x, (prod(x.shape[:-1]), x.shape[-1]))
    return view(x.tracer.emit(kind, rows, *weights, eps=epsilon), x.shape)
