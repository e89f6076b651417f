"""Convolutions in 3-D as 2-D ones over frames, whose channels are those of a window of frames."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional


def _three(sizes: Any) -> tuple[int, int, int]:
    if isinstance(sizes, int):
        return (sizes,) * 3
    first, second, third = tuple(sizes) * (3 if len(sizes) == 1 else 1)
    return first, second, third


def _as_frames(x: torch.Tensor) -> torch.Tensor:
    """Shapes: [N, C, ..., T, H, W] -> [N T, C ..., H, W]"""
    return x.movedim(-3, 1).flatten(0, 1).flatten(1, -3)


def _as_volumes(frames: torch.Tensor, samples: int) -> torch.Tensor:
    """Shapes: [N T, C, H, W] -> [N, C, T, H, W]"""
    return frames.unflatten(0, (samples, -1)).movedim(1, 2)


def conv3d(
    recorder: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Shapes: input [N, C, T, H, W] or [C, T, H, W], weight [O, C / groups, A, B, D]"""
    if input.dim() == 4:
        options = (bias, stride, padding, dilation, groups)
        return functional.conv3d(input.unsqueeze(0), weight, *options).squeeze(0)
    strides, dilations = _three(stride), _three(dilation)
    before, after = _padding(padding, weight.shape[2:], dilations)
    edges = [size for each in zip(before, after, strict=True) for size in each]
    is_even = before[1:] == after[1:]
    x = functional.pad(input, (0, 0, 0, 0, *edges[:2])) if any(edges[:2]) else input
    x = x if is_even else functional.pad(x, (*edges[4:], *edges[2:4]))
    window, last = weight.shape[2], (weight.shape[2] - 1) * dilations[0]
    ends = [x.shape[2] - last + place * dilations[0] for place in range(window)]
    frames = [x[:, :, place * dilations[0] : end : strides[0]] for place, end in enumerate(ends)]
    wide = _as_frames(torch.stack(frames, 2) if window > 1 else frames[0])
    out = functional.conv2d(
        wide,
        weight.flatten(1, 2),
        bias,
        strides[1:],
        before[1:] if is_even else 0,
        dilations[1:],
        groups,
    )
    return _as_volumes(out, len(input))


def _padding(
    given: Any, window: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after each axis."""
    if given == "valid":
        return (0, 0, 0), (0, 0, 0)
    if given == "same":
        total = [(size - 1) * step for size, step in zip(window, dilations, strict=True)]
        return tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
    return _three(given), _three(given)


def conv_transpose3d(
    recorder: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Shapes: input [N, C, T, H, W] or [C, T, H, W], weight [C, O / groups, A, B, D]"""
    if input.dim() == 4:
        options = (bias, stride, padding, output_padding, groups, dilation)
        return functional.conv_transpose3d(input.unsqueeze(0), weight, *options).squeeze(0)
    strides, dilations, paddings, output_paddings = map(
        _three, (stride, dilation, padding, output_padding)
    )
    window, count = weight.shape[2], input.shape[2]
    frames = functional.conv_transpose2d(
        _as_frames(input),
        weight.flatten(1, 2),
        None,
        strides[1:],
        paddings[1:],
        output_paddings[1:],
        groups,
        dilations[1:],
    )
    each = _as_volumes(frames.unflatten(1, (-1, window)), len(input))  # [N, O, T, A, H, W]
    places = torch.arange(count)[:, None] * strides[0] + torch.arange(window) * dilations[0]
    length = (count - 1) * strides[0] + (window - 1) * dilations[0] + 1 + output_paddings[0]
    out = torch.zeros((*each.shape[:2], length, *each.shape[-2:]), dtype=input.dtype)
    out = out.index_add(2, places.flatten(), each.flatten(2, 3))
    out = out.narrow(2, paddings[0], length - 2 * paddings[0])
    return out if bias is None else out + bias.view(-1, 1, 1, 1)
