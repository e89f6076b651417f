"""Convolution, pooling and batch normalization."""

from collections.abc import Sequence

import numpy as np
from support.operators.cases import AS_TEXT, Case, case, cases, normal, not_compiled, positive

from csrun.cirh.ops import batch_norm, convolution, pooling


def _convolution(torch, x, weight, *bias):
    return torch.ops.aten.convolution(
        x, weight, *(bias or [None]), [2, 1], [1, 2], [1, 2], False, [0, 0], 2
    )


def _convolution_gradients(torch, grad, x, weight):
    return torch.ops.aten.convolution_backward(
        grad, x, weight, [6], [2, 1], [1, 2], [1, 2], False, [0, 0], 2, [True, True, True]
    )


def _transposed_convolution(torch, x, weight):
    return _convolution_gradients(torch, x, torch.zeros(IMAGES.shape).double(), weight)[0]


def _batch_norm(torch, x, weight, bias, mean, var, samples):
    """Two rows a sample; the rows behind are normalized by the statistics of those before."""
    counted, running = x[: 2 * int(samples)], [mean.clone(), var.clone()]
    _, mean, rstd = torch.native_batch_norm(counted, weight, bias, *running, True, 0.3, 1e-3)
    out = (x - mean[:, None]) * (rstd * weight)[:, None] + bias[:, None]
    return out, mean, rstd, *running


def _batch_norm_of_all(torch, x, weight, bias, mean, var, samples):
    running = [value.detach().clone() for value in (mean, var)]
    return torch.nn.functional.batch_norm(x, *running, weight, bias, True, 0.3, 1e-3)


def _batch_norm_gradients(torch, grad, x, mean, rstd, weight, samples):
    rows = 2 * int(samples)
    found = torch.ops.aten.native_batch_norm_backward(
        grad[:rows], x[:rows], weight, None, None, mean, rstd, True, 1e-3, [True, True, True]
    )
    return torch.cat([found[0], torch.zeros_like(x[rows:])]), *found[1:]


def _max_pool(torch, x):
    """Values, and offsets in the window from ATen's indices in the image."""
    out, indices = torch.nn.functional.max_pool2d(x, (3, 2), (2, 1), (1, 1), (1, 2), False, True)
    rows, columns = indices // x.shape[3], indices % x.shape[3]
    down = rows - 2 * torch.arange(out.shape[2])[:, None] + 1
    right = (columns - torch.arange(out.shape[3]) + 1) // 2
    return out, (2 * down + right).int()


def _max_pool_gradient(torch, grad, offsets):
    x = torch.from_numpy(IMAGES).requires_grad_()
    return torch.autograd.grad(_max_pool(torch, x)[0], x, grad)[0]


def _avg_pool(torch, x):
    return torch.nn.functional.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False)


def _avg_pool_gradient(torch, grad):
    x = torch.zeros(IMAGES.shape).double().requires_grad_()
    return torch.autograd.grad(_avg_pool(torch, x), x, grad)[0]


def offsets_of_images() -> np.ndarray:
    """What `_max_pool` saves: the first largest pixel of each window."""
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, :, :, ::2]
    return seen.reshape(*seen.shape[:4], 6).argmax(-1).astype(np.int32)


IMAGES, KERNEL, MAPS = normal(2, 4, 5, 6), normal(6, 2, 3, 2), normal(2, 6, 3, 8)
STRIDED = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
NORMED = normal(8, 3, 5) + 2
COUNTED = NORMED[:6]  # of three samples
SPREAD = COUNTED.mean((0, 2)), 1 / np.sqrt(COUNTED.var((0, 2)) + 1e-3)
NORM = {"rows": 2, "momentum": 0.3, "eps": 1e-3}
RUNNING = normal(3), positive(3)
POOL = {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
MEANS = {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "count_include_pad": False}
DENSE = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}

FORWARD: Sequence[Case] = (
    case(convolution.ConvolutionOp, _convolution, IMAGES, KERNEL, normal(6), **STRIDED),
    case(convolution.ConvolutionOp, _convolution, IMAGES, KERNEL, **STRIDED),
    case(
        convolution.ConvolutionOp,
        lambda torch, x, weight: torch.conv2d(x, weight),
        normal(0, 1, 2, 2),
        normal(3, 1, 2, 1),
        **DENSE,
    ),
    case(
        convolution.ConvolutionBackwardInputOp,
        _transposed_convolution,
        MAPS,
        KERNEL,
        input_size=IMAGES.shape,
        **STRIDED,
    ),
    case(pooling.MaxPool2dOp, lambda *a: _max_pool(*a)[0], IMAGES, **POOL),
    case(pooling.AvgPool2dOp, _avg_pool, IMAGES, **MEANS),
    case(
        pooling.AvgPool2dOp,
        lambda torch, x: torch.nn.functional.avg_pool2d(x, 2, 2, 1),
        normal(2, 1, 5, 4),
        kernel_size=(2, 2),
        stride=(2, 2),
        padding=(1, 1),
        count_include_pad=True,
    ),
    *not_compiled(
        AS_TEXT,
        case(
            batch_norm.NativeBatchNormOp,
            _batch_norm_of_all,
            NORMED,
            normal(3),
            normal(3),
            *RUNNING,
            np.array(4),
            **NORM,
        ),
    ),
)


WITHOUT_GRADIENT: Sequence[Case] = (
    case(
        convolution.ConvolutionBackwardWeightOp,
        lambda torch, g, x: _convolution_gradients(torch, g, x, torch.zeros(KERNEL.shape).double())[
            1
        ],
        MAPS,
        IMAGES,
        weight_size=KERNEL.shape,
        **STRIDED,
    ),
    *cases(pooling.MaxPool2dOp, _max_pool, 2, np.round(IMAGES), **POOL),
    case(
        pooling.MaxPool2dBackwardOp,
        _max_pool_gradient,
        normal(2, 4, 3, 6),
        offsets_of_images(),
        input_size=IMAGES.shape,
        **POOL,
    ),
    case(
        pooling.AvgPool2dBackwardOp,
        _avg_pool_gradient,
        normal(2, 4, 3, 5),
        input_size=IMAGES.shape,
        **MEANS,
    ),
    *not_compiled(
        AS_TEXT,
        *cases(
            batch_norm.NativeBatchNormOp,
            _batch_norm,
            5,
            NORMED,
            normal(3),
            normal(3),
            *RUNNING,
            np.array(3),
            **NORM,
        ),
    ),
    *not_compiled(
        AS_TEXT,
        *cases(
            batch_norm.NativeBatchNormBackwardOp,
            _batch_norm_gradients,
            3,
            normal(8, 3, 5),
            NORMED,
            *SPREAD,
            normal(3),
            np.array(3),
            rows=2,
        ),
    ),
)
