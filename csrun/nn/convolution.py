"""Convolution over images [B, C, H, W], channels first."""

from csrun.cirh.ops.convolution import ConvolutionOp
from csrun.nn.activations import Activation
from csrun.nn.activations import activation as activation_named
from csrun.nn.errors import TraceError, user_line
from csrun.nn.initializers import Initializer, glorot_uniform, zeros
from csrun.nn.tensor import Tensor, require_floats
from csrun.nn.windows import Sizes, pair_of, require_images


class Conv2D:
    """activation(kernel * x + bias), a two-dimensional cross-correlation.

    Parameters `<name>/kernel` [filters, C / groups, rows, columns] and `<name>/bias` [filters] are
    created at each call. A size is one number, or a pair for rows and columns. `padding` is the
    number of zeros on each side, or "same" to preserve the image size. Filters of a group read only
    the channels of that group.

    Raises: TraceError for an invalid size or an unknown activation
    Source: LeCun et al. 1998, section II
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = glorot_uniform,
        name: str | None = None,
    ) -> None:
        self.filters, self.groups = (
            _require_positive(what, value)
            for what, value in (("filters", filters), ("groups", groups))
        )
        self.kernel_size = pair_of("Conv2D", "kernel_size", kernel_size)
        self._options = {
            "stride": pair_of("Conv2D", "stride", stride),
            "dilation": pair_of("Conv2D", "dilation", dilation),
        }
        same = isinstance(padding, str) and padding == "same"
        self._options["padding"] = (
            self._same_padding() if same else pair_of("Conv2D", "padding", padding, least=0)
        )
        self.use_bias = use_bias
        self.name = name
        self._activation = activation_named(activation)
        self._kernel_initializer = kernel_initializer

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, C, H, W] -> [B, filters, H', W']

        Raises: ShapeError for an input of another rank, an image smaller than the window, or
            channels that are not a multiple of the groups
        """
        with x.tracer.layer("conv2d", self.name) as scope:
            require_images(x, scope)
            shape = (self.filters, x.shape[1] // self.groups, *self.kernel_size)
            kernel = x.tracer.parameter("kernel", shape, self._kernel_initializer(shape))
            weights = [kernel]
            if self.use_bias:
                size = (self.filters,)
                weights.append(x.tracer.parameter("bias", size, zeros(size)))
            images = require_floats(f"layer {scope}", x)
            out = x.tracer.emit(
                ConvolutionOp, images, *weights, groups=self.groups, **self._options
            )
            return self._activation(out) if self._activation else out

    def _same_padding(self) -> tuple[int, int]:
        """Padding that preserves the image size: half of the window, without its center.

        Raises: TraceError for a stride other than 1, or a window of even size
        """
        dilation, stride = self._options["dilation"], self._options["stride"]
        margin = [d * (k - 1) for d, k in zip(dilation, self.kernel_size, strict=True)]
        if stride != (1, 1) or any(n % 2 for n in margin):
            raise TraceError(
                f"{user_line()}: Conv2D: padding 'same' needs stride 1 and an odd window, "
                f"got stride {list(stride)} and kernel_size {list(self.kernel_size)}"
            )
        return margin[0] // 2, margin[1] // 2


def _require_positive(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TraceError(f"{user_line()}: Conv2D: {what} must be a positive integer, got {value!r}")
    return value
