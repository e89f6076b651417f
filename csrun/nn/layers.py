"""Dense, Bias and Dropout layers."""

from math import prod

from csrun.cirh.ops.products import AddmmOp, MmOp
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.ops.shape import PermuteOp
from csrun.cirh.types import tensor_type, text_of, type_of
from csrun.nn.activations import Activation
from csrun.nn.activations import activation as activation_named
from csrun.nn.errors import ShapeError, TraceError, user_line
from csrun.nn.initializers import Initializer, glorot_uniform, zeros
from csrun.nn.shapes import view
from csrun.nn.tensor import Tensor


class Dense:
    """activation(x @ kernel + bias), over the last axis of x.

    Parameters `<name>/kernel` [in, units] and `<name>/bias` [units] are created at each call: two
    calls of one object are two layers.

    Raises: TraceError for units below 1 or an unknown activation
    """

    def __init__(
        self,
        units: int,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = glorot_uniform,
        name: str | None = None,
    ) -> None:
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise TraceError(
                f"{user_line()}: Dense: units must be a positive integer, got {units!r}"
            )
        self.units = units
        self.use_bias = use_bias
        self.name = name
        self._activation = activation_named(activation)
        self._kernel_initializer = kernel_initializer

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ..., in] -> [B, ..., units]

        Raises: ShapeError for a tensor of fewer than two axes
        """
        with x.tracer.layer("dense", self.name) as scope:
            _require_features(x, scope)
            rows = view(x, (prod(x.shape[:-1]), x.shape[-1]))
            out = self._affine(rows)
            out = self._activation(out) if self._activation else out
            return view(out, (*x.shape[:-1], self.units))

    def _affine(self, x: Tensor) -> Tensor:
        """Shapes: x [rows, in] -> [rows, units]"""
        shape = (x.shape[1], self.units)
        kernel = x.tracer.parameter("kernel", shape, self._kernel_initializer(shape))
        if not self.use_bias:
            return x.tracer.emit(MmOp, x, kernel)
        bias = x.tracer.parameter("bias", (self.units,), zeros((self.units,)))
        return x.tracer.emit(AddmmOp, bias, x, kernel)


class Bias:
    """x plus a trained bias per feature, for example after `Embedding.attend`.

    The parameter `<name>/bias`, of the size of the last axis, is created at each call.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ..., N] -> the same

        Raises: ShapeError for a tensor of fewer than two axes
        """
        with x.tracer.layer("bias", self.name) as scope:
            _require_features(x, scope)
            size = x.shape[-1:]
            return x + x.tracer.parameter("bias", size, zeros(size))


class Dropout:
    """Dropout: zero values with probability `rate` in training, and scale up the rest.

    The mask is a function of the run's seed, the step, the layer, the sample's index in the global
    batch and the value's index in the sample, so it does not depend on how a batch is split.
    Evaluation returns x unchanged.

    Raises: TraceError for a rate outside [0, 1)
    Source: Srivastava et al. 2014, section 10 (inverted scaling)
    """

    def __init__(self, rate: float, name: str | None = None) -> None:
        self.rate = require_rate("Dropout: rate", rate)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ...] -> the same"""
        tracer = x.tracer
        with tracer.layer("dropout", self.name):
            return tracer.emit(MaskedScaleOp, x, self._mask(x), scale=1 / (1 - self.rate))

    def _mask(self, x: Tensor) -> Tensor:
        """Draw the mask with samples on axis 0, then permute it to the axes of x.

        Shapes: as x
        """
        tracer, dependence = x.tracer, x.tracer.dependence(x)
        if dependence.outer > 1:  # [T B] as [T, B]
            return view(self._mask(view(x, dependence.sample_axis.split_sizes(x.shape))), x.shape)
        axis = dependence.axis or 0
        others = tuple(d for d in range(len(x.shape)) if d != axis)
        shape = [x.shape[d] for d in (axis, *others)] if x.shape else []
        kind = tensor_type(shape, "bool")
        rows = 0 if dependence.axis is None else dependence.rows
        drawn = tracer.builder.leaf(
            DropoutMaskOp, kind, rate=self.rate, stream=tracer.next_stream(), rows=rows
        )
        mask = Tensor(tracer, drawn)
        if axis == 0:
            return mask
        return tracer.emit(PermuteOp, mask, dims=(*range(1, axis + 1), 0, *others[axis:]))


def _require_features(x: Tensor, scope: str) -> None:
    if len(x.shape) < 2:
        raise ShapeError(
            f"{user_line()}: layer {scope}: the input must be [batch, ..., features], "
            f"got shape {text_of(type_of(x.value))}"
        )


def require_rate(what: str, rate: float) -> float:
    """Return a dropout rate.

    Raises: TraceError for a rate outside [0, 1)
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise TraceError(f"{user_line()}: {what} must be in [0, 1), got {rate!r}")
    return float(rate)
