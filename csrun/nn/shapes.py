"""Functions that change a tensor's shape."""

from math import prod

from csrun.cirh.ops.shape import ViewOp
from csrun.nn.errors import located
from csrun.nn.tensor import Tensor


def flatten(x: Tensor) -> Tensor:
    """All axes but the batch as one.

    Shapes: [B, ...] -> [B, N]
    """
    with located("flatten"):
        return view(x, (x.shape[0], prod(x.shape[1:])))


def view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in row-major order under another shape; x itself when it has that shape."""
    return x if x.shape == shape else x.tracer.emit(ViewOp, x, shape=shape)
