"""Convolution and its two gradients, one kernel each."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Self

from xdsl.ir import Operation

from csrun.cirh.ops.convolution import (
    ConvolutionBackwardInputOp,
    ConvolutionBackwardWeightOp,
    ConvolutionOp,
    ConvolvingOp,
    Windows,
    windows_of,
)
from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase
from csrun.executable import nbytes_of

#: Size of the columns: within a core's L2, with many samples of a small image per call.
TILE_BYTES = 1 << 20
PIXEL = Windows((1, 1), (1, 1), (0, 0))  # sees each pixel once: no columns are needed


@dataclass(frozen=True)
class Convolution(Kernel):
    """Base of a convolution and its gradients: three arrays, and the windows.

    Shapes: images [N, C, H, W], weight [O, C/G, KH, KW], maps [N, O, H', W']
    """

    images: Array
    weight: Array
    maps: Array
    windows: Windows
    groups: int

    kind = "convolution"

    @property
    def flops(self) -> int:
        """A multiply-add for each weight at each output position."""
        return 2 * prod(self.maps.shape) * prod(self.weight.shape[1:])

    @property
    def scratch(self) -> tuple[Array, ...]:
        return () if self._sees_pixels else (self._columns,)

    @property
    def _sees_pixels(self) -> bool:
        return self.windows == PIXEL and self.images.is_contiguous

    @cached_property
    def _columns(self) -> Array:
        """Return the columns of a tile of samples (im2col)."""
        samples, own = self.images.shape[0], self._sample_columns
        nbytes = nbytes_of(own, self.maps.dtype)
        tile = max(1, min(samples, TILE_BYTES // max(nbytes, 1)))
        return self._own("columns", (tile, *own))

    @property
    def _sample_columns(self) -> Shape:
        return (self.images.shape[1], *self.windows.size, *self.maps.shape[2:])

    def _own(self, what: str, shape: Shape) -> Array:
        return Array(f"{self._stem}/{what}", shape, self.maps.dtype)

    @property
    def _stem(self) -> str:
        """Return a name that no other kernel has."""
        return self.writes[0].stem

    @property
    def _shape(self) -> Shape:
        """Shape of the weight, as a matrix for each group: [G, O/G, K]."""
        outputs, *inner = self.weight.shape
        return self.groups, outputs // self.groups, prod(inner)

    def _matrices(self) -> Array:
        return _viewed(self.weight, self._shape)

    def _of_groups(self, array: Array) -> Array:
        """View [N, C, H, W] as [N, G, C/G, H W]."""
        samples, channels, rows, columns = array.shape
        shape = (samples, self.groups, channels // self.groups, rows * columns)
        return _viewed(array, shape)

    def prepare(self, name: Name) -> list[str]:
        """Bind the taps: the pixel that each window element reads."""
        lines = ["from csrun.kernels import convolution, windows"]
        if self._sees_pixels:
            return lines
        return [*lines, f"{self._taps(name)} = windows.taps({self._where()})"]

    def _where(self) -> str:
        """Return the text of the sizes of images and windows."""
        image, places, w = self.images.shape[2:], self.maps.shape[2:], self.windows
        return f"{image}, {places}, {w.size}, {w.stride}, {w.padding}, {w.dilation}"

    def _taps(self, name: Name) -> str:
        return f"{name(self._columns)}_taps"

    def _call(self, function: str, *arguments: str) -> list[str]:
        return [f"convolution.{function}({', '.join(arguments)})"]


@dataclass(frozen=True)
class Convolve(Convolution):
    """maps = weight * images + bias."""

    bias: Array | None

    @property
    def reads(self) -> tuple[Array, ...]:
        return tuple(a for a in (self.images, self.weight, self.bias) if a is not None)

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.maps,)

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        bias = "None" if self.bias is None else name(self.bias)
        arrays = name(self._matrices()), bias, name(self._of_groups(self.maps))
        if self._sees_pixels:
            return self._call("convolve_pixels", name(self._of_groups(self.images)), *arrays)
        own = name(self._columns), self._taps(name)
        return self._call("convolve", name(self.images), *arrays, *own)


@dataclass(frozen=True)
class ConvolveBackwardInput(Convolution):
    """images = gradient of the convolved images, from that of the maps.

    With windows at every pixel, it is itself a convolution of the maps.
    """

    phase = Phase.BACKWARD

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return the columns, and the flipped weight."""
        return (*super().scratch, *([self._flipped] if self.is_flipped else []))

    @property
    def is_flipped(self) -> bool:
        """Return whether it is the convolution of the maps with the flipped weight."""
        fits = all(padding >= 0 for padding in self.flipped_padding)
        is_dense = self.windows.stride == (1, 1) and self.images.is_contiguous
        return is_dense and fits and not self._sees_pixels

    @property
    def flipped_padding(self) -> tuple[int, int]:
        """Padding of the feature maps, for windows at every pixel of the images."""
        w = self.windows
        rows, columns = (
            d * (k - 1) - p for k, p, d in zip(w.size, w.padding, w.dilation, strict=True)
        )
        return rows, columns

    @property
    def _flipped(self) -> Array:
        groups, outputs, _ = self._shape
        inputs, *size = self.weight.shape[1:]
        return self._own("flipped", (groups, inputs, outputs, *size))

    @property
    def _sample_columns(self) -> Shape:
        if not self.is_flipped:
            return super()._sample_columns
        return (self.maps.shape[1], *self.windows.size, *self.images.shape[2:])

    def _where(self) -> str:
        if not self.is_flipped:
            return super()._where()
        w, image, maps = self.windows, self.images.shape[2:], self.maps.shape[2:]
        return f"{maps}, {image}, {w.size}, (1, 1), {self.flipped_padding}, {w.dilation}"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.maps, self.weight

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.images,)

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        arrays = name(self._of_groups(self.maps)), name(self._matrices())
        if self._sees_pixels:
            return self._call("backward_pixels", *arrays, name(self._of_groups(self.images)))
        if self.is_flipped:
            operands = name(self.maps), name(self.weight), name(self._of_groups(self.images))
            own = (*map(name, self.scratch), self._taps(name))
            return self._call("backward_flipped", *operands, *own)
        own = name(self._columns), self._taps(name)
        return self._call("backward_input", *arrays, name(self.images), *own)


@dataclass(frozen=True)
class ConvolveBackwardWeight(Convolution):
    """weight = gradient of the weight; with `adds` it is accumulated."""

    adds: bool = False

    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.maps, self.images

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.weight,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return the columns, and a sample's gradient."""
        return self._columns, self._part

    @property
    def _sees_pixels(self) -> bool:
        return False

    @property
    def _stem(self) -> str:
        """Return a unique name, since several kernels may compute the gradient of one weight."""
        return f"{self.weight.stem}/{self.maps.stem}/{self.images.stem}"

    @property
    def _part(self) -> Array:
        return self._own("part", self._shape)

    def adding(self) -> Self:
        return replace(self, adds=True)

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        maps, images = name(self._of_groups(self.maps)), name(self.images)
        own = (*map(name, self.scratch), self._taps(name))
        adds = ["adds=True"] if self.adds else []
        return self._call("backward_weight", maps, images, name(self.weight), *own, *adds)


def match_convolution(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, ConvolvingOp)
    graph.take(operation)
    layer, groups = graph.layer_of(operation), operation.groups.value.data

    def of(images: Array, weight: Array, maps: Array) -> tuple[Array, Array, Array, Windows, int]:
        size = (weight.shape[2], weight.shape[3])
        return images, weight, maps, windows_of(operation.properties, size), groups

    first, second = (graph.array(value) for value in operation.operands[:2])
    result = graph.array(operation.results[0])
    match operation:
        case ConvolutionBackwardInputOp():
            return ConvolveBackwardInput(layer, *of(result, second, first))
        case ConvolutionBackwardWeightOp():
            return ConvolveBackwardWeight(layer, *of(second, result, first))
        case _:
            bias = [graph.array(value) for value in operation.operands[2:]]
            return Convolve(layer, *of(first, second, result), bias[0] if bias else None)


def _viewed(array: Array, shape: Shape) -> Array:
    found = array.reshaped(shape)
    assert found is not None, "a copy was inserted before an array whose rows are not a view"
    return found


MATCHERS: dict[str, Matcher] = dict.fromkeys(
    (ConvolutionOp.name, ConvolutionBackwardInputOp.name, ConvolutionBackwardWeightOp.name),
    match_convolution,
)
