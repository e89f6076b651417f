"""Dropout."""

from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.types import tensor_type
from csrun.nn.errors import TraceError, user_line
from csrun.nn.tensor import Tensor


class Dropout:
    """Zeroes each value with probability `rate` while training, and scales the others up.

    The mask follows from the run's seed, the step, the layer's place in the model and the sample's
    index in the global batch: splitting a batch changes nothing. Evaluation leaves x as it is.

    Raises: TraceError for a rate outside [0, 1)
    Source: Srivastava et al. 2014, section 10 (inverted scaling)
    """

    def __init__(self, rate: float, name: str | None = None) -> None:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise TraceError(f"{user_line()}: Dropout: rate must be in [0, 1), got {rate!r}")
        self.rate = float(rate)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, ...] -> the same"""
        tracer = x.tracer
        with tracer.layer("dropout", self.name):
            kind = tensor_type(x.shape, "bool")
            stream = tracer.next_stream()
            mask = tracer.builder.leaf(DropoutMaskOp, kind, rate=self.rate, stream=stream)
            return tracer.emit(MaskedScaleOp, x, Tensor(tracer, mask), scale=1 / (1 - self.rate))
