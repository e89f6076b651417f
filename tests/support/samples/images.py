"""The oracle's table: convolutions and pools over images."""

from support.samples.row import Row, given, only, skip


def convolution(nn, x, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """The layer; padding "same" is as many zeros as keep the size, "valid" none."""
    if len(x.shape) != 4:
        skip("an image without a batch")
    if padding == "same" and not all(size % 2 for size in weight.shape[2:]):
        skip("same around windows without a middle")
    options = {
        "stride": stride,
        "padding": 0 if padding == "valid" else padding,
        "dilation": dilation,
        "groups": groups,
        "use_bias": bias is not None,
    }
    with given(x, weight, *([] if bias is None else [bias])):
        return nn.Conv2D(weight.shape[0], weight.shape[2:], **options)(x)


def max_pool(
    nn,
    x,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode=False,
    return_indices=False,
):
    only(ceil_mode=(ceil_mode, False), return_indices=(return_indices, False))
    if len(x.shape) != 4:
        skip("an image without a batch")
    return nn.MaxPool(kernel_size, stride, padding, dilation)(x)


def average_pool(
    nn,
    x,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    only(ceil_mode=(ceil_mode, False), divisor_override=(divisor_override, None))
    if len(x.shape) != 4:
        skip("an image without a batch")
    return nn.AveragePool(kernel_size, stride, padding, count_include_pad)(x)


ROWS = (
    Row("nn.functional.conv2d", convolution),
    Row("nn.functional.max_pool2d", max_pool),
    Row("nn.functional.avg_pool2d", average_pool),
)
