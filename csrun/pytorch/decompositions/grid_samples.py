"""Images sampled at the places of a grid, forward and backward, in 2-D and 3-D.

Source: PyTorch, aten/src/ATen/native/cpu/GridSamplerKernel.cpp
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from itertools import product
from operator import and_, mul
from typing import Any

import torch

CUBIC_SLOPE = -0.75  # PyTorch's a of cubic interpolation


class Interpolation(IntEnum):
    """ATen's numbers of the modes."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2


class GridPadding(IntEnum):
    """ATen's codes for values outside of the image."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


@dataclass(frozen=True)
class _Options:
    """ATen's options, and the axes of an image.

    aligned: -1 and 1 are the centres of the first and last pixel.
    """

    interpolation: int
    padding: int
    aligned: bool
    axes: int


@dataclass(frozen=True)
class _WeightedPixel:
    """A pixel of an axis that each sample reads, with its weight.

    place: number of the pixel, a float; slope: derivative of the weight by the grid's coordinate.

    Shapes: [N, P] each
    """

    place: torch.Tensor
    weight: torch.Tensor
    slope: torch.Tensor


class _SampledPixels:
    """Pixels that the samples read, and their weights.

    index: number of each pixel in its image; that of any pixel where it is beyond the image. Shape:
        [N, K, P]
    weights: 0 of pixels beyond the image. Shape: [N, K, P]
    slopes: derivatives of the weights by each coordinate. Shapes: [N, K, P]
    """

    def __init__(self, grid: torch.Tensor, sizes: Sequence[int], options: _Options) -> None:
        coordinates = grid.flatten(1, -2).unbind(-1)
        backward = list(reversed(sizes))  # the grid's first coordinate is along the last axis
        each = [_taps(c, size, options) for c, size in zip(coordinates, backward, strict=True)]
        chosen = [list(taps) for taps in product(*each)]
        found = [_pixel(taps, backward) for taps in chosen]
        self.index = torch.stack([index for index, _ in found], 1)
        inside = torch.stack([is_inside for _, is_inside in found], 1)
        weights = _products(chosen, None)
        is_nan = weights != weights  # of coordinates that are NaN
        self.weights = torch.where(inside | is_nan, weights, 0)
        axes = range(len(sizes))
        self.slopes = [torch.where(inside, _products(chosen, axis), 0) for axis in axes]

    def read(self, images: torch.Tensor) -> torch.Tensor:
        """Shapes: images [N, C, ...] -> [N, C, K, P]"""
        found = images.flatten(2).gather(2, self.index_of(images))
        return found.unflatten(2, self.index.shape[1:])

    def index_of(self, images: torch.Tensor) -> torch.Tensor:
        """The index for each channel. Shapes: images [N, C, ...] -> [N, C, K P]"""
        return self.index.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)


def _products(chosen: Sequence[Sequence[_WeightedPixel]], axis: int | None) -> torch.Tensor:
    """Products of weights, with the slope along one axis. Shape: [N, K, P]"""
    return torch.stack(
        [
            reduce(mul, (t.slope if number == axis else t.weight for number, t in enumerate(taps)))
            for taps in chosen
        ],
        1,
    )


def _pixel(
    taps: Sequence[_WeightedPixel], sizes: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of pixels in their image and whether they are in it."""
    inside = [(t.place >= 0) & (t.place < size) for t, size in zip(taps, sizes, strict=True)]
    places = [torch.where(i, t.place, 0).long() for i, t in zip(inside, taps, strict=True)]
    backward = list(zip(places, sizes, strict=True))[::-1]
    index = backward[0][0]
    for place, size in backward[1:]:
        index = index * size + place
    return index, reduce(and_, inside)


def _taps(coordinates: torch.Tensor, size: int, options: _Options) -> list[_WeightedPixel]:
    scale = (size - 1) / 2 if options.aligned else size / 2
    place = _unnormalized(coordinates + 1, size, options)
    if options.interpolation == Interpolation.CUBIC:
        first = place.floor()
        return [
            _WeightedPixel(_inside(first + at, size, options)[0], weight, slope * scale)
            for at, (weight, slope) in enumerate(_cubic_weights(place - first), -1)
        ]
    place, slope = _inside(place, size, options)
    if options.interpolation == Interpolation.NEAREST:
        return [_WeightedPixel(place.round(), torch.ones_like(place), torch.zeros_like(place))]
    first, slope = place.floor(), slope * scale
    share = place - first
    return [_WeightedPixel(first, 1 - share, -slope), _WeightedPixel(first + 1, share, slope)]


def _unnormalized(above: torch.Tensor, size: int, options: _Options) -> torch.Tensor:
    """Return places from coordinates + 1, with the bits of PyTorch's kernels."""
    if options.axes == 3:
        if options.aligned:
            return above / 2 * (size - 1)
        return (above * size - 1) / 2
    if options.aligned:
        return above * ((size - 1) / 2)
    # rounded once, like a fused multiply-add, from two parts of half the bits
    wide = above * (2**27 + 1 if above.dtype == torch.float64 else 2**12 + 1)
    high = wide - (wide - above)
    return (high * (size / 2) - 0.5) + (above - high) * (size / 2)


def _cubic_weights(share: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights of four pixels and their slopes. Source: Keys 1981, equation 15"""
    a, found = CUBIC_SLOPE, []
    each = (False, share + 1, 1), (True, share, 1), (True, 1 - share, -1), (False, 2 - share, -1)
    for is_near, distance, sign in each:
        if is_near:
            weight = ((a + 2) * distance - (a + 3)) * distance * distance + 1
            slope = (3 * (a + 2) * distance - 2 * (a + 3)) * distance
        else:
            weight = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
            slope = (3 * a * distance - 10 * a) * distance + 8 * a
        found.append((weight, slope * sign))
    return found


def _inside(place: torch.Tensor, size: int, options: _Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Move places into the image, and return the slopes of the moved ones.

    As in PyTorch, the border counts as beyond the image.
    """
    slope = torch.ones_like(place)
    if options.padding == GridPadding.ZEROS:
        return place, slope
    if options.padding == GridPadding.REFLECTION:
        place, slope = _reflected(place, size, options.aligned)
    is_moved = (place <= 0) | (place >= size - 1)
    return place.clamp(0, size - 1), torch.where(is_moved, 0, slope)


def _reflected(place: torch.Tensor, size: int, aligned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    low, span = (0.0, size - 1) if aligned else (-0.5, size)
    if not span:
        return torch.zeros_like(place), torch.zeros_like(place)
    above = place - low
    sign = torch.where(above < 0, -1, 1).to(place.dtype)
    above = above.abs()
    rest = above - (above / (2 * span)).floor() * (2 * span)
    is_second_half = rest > span
    reflected = torch.where(is_second_half, 2 * span - rest, rest)
    return reflected + low, torch.where(is_second_half, -sign, sign)


def affine_grid(theta: torch.Tensor, sizes: Sequence[int], aligned: bool) -> torch.Tensor:
    """Places of an affine transformation, with the bits of PyTorch's kernel, not its decomposition.

    Those of the unit matrix, with which spatial transformers begin, are at the centres of pixels,
    where the gradient of an interpolation jumps.

    Shapes: theta [N, 2, 3], sizes N, C, H, W -> [N, H, W, 2]; theta [N, 3, 4] -> [N, D, H, W, 3]
    """
    each = [_places_of_axis(size, aligned, theta.dtype) for size in sizes[2:]]
    places = torch.stack([*torch.meshgrid(*each, indexing="ij")][::-1], -1).flatten(0, -2)
    base = torch.cat([places, torch.ones_like(places[:, :1])], 1)
    found = base.expand(len(theta), -1, -1).bmm(theta.mT)
    return found.unflatten(1, sizes[2:])


def _places_of_axis(size: int, aligned: bool, kind: torch.dtype) -> torch.Tensor:
    if size <= 1:
        return torch.zeros(1, dtype=kind)
    places = torch.linspace(-1, 1, size, dtype=kind)
    return places if aligned else places * (size - 1) / size


def grid_sample(
    images: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, aligned: bool
) -> torch.Tensor:
    """Shapes: images [N, C, ...], grid [N, ..., axes] -> [N, C, ...]"""
    samples = _SampledPixels(
        grid, images.shape[2:], _Options(interpolation, padding, aligned, images.dim() - 2)
    )
    found = (samples.read(images) * samples.weights.unsqueeze(1)).sum(2)
    return found.unflatten(2, grid.shape[1:-1])


def grid_sample_backward(
    grad: torch.Tensor,
    images: torch.Tensor,
    grid: torch.Tensor,
    interpolation: int,
    padding: int,
    aligned: bool,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of the images and of the grid."""
    samples = _SampledPixels(
        grid, images.shape[2:], _Options(interpolation, padding, aligned, images.dim() - 2)
    )
    grads = grad.flatten(2).unsqueeze(2)  # [N, C, 1, P]
    of_images = of_grid = None
    if wanted[0]:
        added = (grads * samples.weights.unsqueeze(1)).flatten(2)
        zeros = torch.zeros_like(images).flatten(2)
        of_images = zeros.scatter_add(2, samples.index_of(images), added).view(images.shape)
    if wanted[1]:
        along = (samples.read(images) * grads).sum(1)
        each = [(along * slope).sum(1) for slope in samples.slopes]
        of_grid = torch.stack(each, -1).view(grid.shape)
    return of_images, of_grid


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.affine_grid_generator.default: affine_grid,
    aten.grid_sampler_2d.default: grid_sample,
    aten.grid_sampler_2d_backward.default: grid_sample_backward,
    aten.grid_sampler_3d.default: grid_sample,
    aten.grid_sampler_3d_backward.default: grid_sample_backward,
}
