"""Max and average pooling over images [B, C, H, W]."""

from csrun.cirh.ops.pooling import AvgPool2dOp, MaxPool2dOp
from csrun.nn.tensor import Tensor, require_floats
from csrun.nn.windows import Sizes, pair_of, require_images


class MaxPool:
    """Maximum of each window; padding is ignored.

    `stride` defaults to the window size. Of equal values, the first gets the gradient.

    Raises: TraceError for an invalid size
    """

    def __init__(
        self,
        pool_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        name: str | None = None,
    ) -> None:
        self._options = _options("MaxPool", pool_size, stride, padding)
        self._options["dilation"] = pair_of("MaxPool", "dilation", dilation)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, C, H, W] -> [B, C, H', W']

        Raises: ShapeError for an input of another rank, or an image smaller than the window
        """
        with x.tracer.layer("max_pool", self.name) as scope:
            require_images(x, scope)
            images = require_floats(f"layer {scope}", x)
            return x.tracer.emit(MaxPool2dOp, images, **self._options)


class AveragePool:
    """Mean of each window, over the padding zeros too unless `count_include_pad` is False.

    `stride` defaults to the window size.

    Raises: TraceError for an invalid size
    """

    def __init__(
        self,
        pool_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> None:
        self._options = _options("AveragePool", pool_size, stride, padding)
        self.count_include_pad = bool(count_include_pad)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, C, H, W] -> [B, C, H', W']

        Raises: ShapeError for an input of another rank, or an image smaller than the window
        """
        with x.tracer.layer("average_pool", self.name) as scope:
            require_images(x, scope)
            images, counts = require_floats(f"layer {scope}", x), self.count_include_pad
            return x.tracer.emit(AvgPool2dOp, images, count_include_pad=counts, **self._options)


def _options(
    layer: str, size: Sizes, stride: Sizes | None, padding: Sizes
) -> dict[str, tuple[int, int]]:
    return {
        "kernel_size": pair_of(layer, "pool_size", size),
        "stride": pair_of(layer, "stride", size if stride is None else stride),
        "padding": pair_of(layer, "padding", padding, least=0),
    }
