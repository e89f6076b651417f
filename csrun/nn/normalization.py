"""Normalization layers: over the last axis, and over all samples of a batch."""

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


class BatchNorm:
    """(x - mean) / sqrt(variance + epsilon) gamma + beta for each channel, which are on axis 1.

    While training, mean and variance are those of the batch's samples; otherwise the running ones,
    which each step brings the share `momentum` nearer to its own, and to the unbiased variance. A
    step's batch is one, which is not split, unless `by_minibatch`: then minibatches in flight and
    replicas have statistics each of its own, and the running ones come nearer to their mean. How a
    batch is split is part of the training then.

    Parameters `<name>/gamma` and `<name>/beta`, states `<name>/running_mean` and
    `<name>/running_var`, all of the number of channels, are made at each call.

    Raises: TraceError for an epsilon that is not positive, a momentum outside 0..1
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
        self.epsilon = _positive("BatchNorm", epsilon)
        self.name = name
        self.by_minibatch = by_minibatch

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, C, ...] -> the same

        Raises: ShapeError for a tensor of fewer than two axes, samples that are not on the first
            one, or a single value of each channel
        """
        tracer = x.tracer
        with tracer.layer("batch_norm", self.name) as scope:
            size, dependence = x.shape[1:2], tracer.dependence(x)
            _require_channels(x, dependence.axis if dependence.outer == 1 else None, scope)
            gamma = tracer.parameter("gamma", size, ones(size))
            beta = tracer.parameter("beta", size, zeros(size))
            running_mean = tracer.state("running_mean", size, zeros(size))
            running_var = tracer.state("running_var", size, ones(size))
            places = require_floats(f"layer {scope}", x)
            out, _, _, next_mean, next_var = tracer.emit_all(
                NativeBatchNormOp,
                view(places, (*x.shape[:2], prod(x.shape[2:]))),
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
            f"{user_line()}: layer {scope}: the input must be [batch, channels, ...] with the "
            f"samples on the first axis, got shape {text_of(type_of(x.value))}"
        )
    if x.shape[0] * prod(x.shape[2:]) < 2:
        raise ShapeError(
            f"{user_line()}: layer {scope}: a channel needs several values to have a variance, "
            f"got shape {text_of(type_of(x.value))}"
        )


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
