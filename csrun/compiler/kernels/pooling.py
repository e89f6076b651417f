"""Pooling: one kernel per operator, over planes."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer
from csrun.cirh.ops.convolution import Windows
from csrun.cirh.ops.pooling import (
    OFFSET,
    AvgPool2dBackwardOp,
    AvgPool2dOp,
    MaxPool2dBackwardOp,
    MaxPool2dOp,
    PoolingOp,
)
from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase
from csrun.executable import nbytes_of

TILE_BYTES = 256 << 10  # of windows' values; with the pixels they read, within a core's L2


@dataclass(frozen=True)
class Pooling(FunctionKernel):
    """Base class of the pooling kernels.

    operands, results: planes of images and of windows, [N C, H, W] and [N C, H', W'].
    """

    windows: Windows
    phase: Phase

    kind = "pooling"

    @property
    def flops(self) -> int:
        """A comparison or an addition for each pixel of each window."""
        return prod(self._maps.shape) * prod(self.windows.size)

    @property
    def _images(self) -> Array:
        return self.results[0] if self.phase is Phase.BACKWARD else self.operands[0]

    @property
    def _maps(self) -> Array:
        return self.operands[0] if self.phase is Phase.BACKWARD else self.results[0]

    @property
    def _tile(self) -> int:
        """Number of planes of a tile."""
        planes, *plane = self._maps.shape
        nbytes = nbytes_of(tuple(plane), self._maps.dtype)
        return max(1, min(planes, TILE_BYTES // max(nbytes, 1)))

    def _own(self, what: str, dtype: str) -> Array:
        """Return scratch of a tile."""
        return self.scratch_array(what, (self._tile, *self._maps.shape[1:]), dtype)

    def prepare(self, name: Name) -> list[str]:
        """Bind the taps: the pixel that each window element reads."""
        w = self.windows
        where = f"{self._images.shape[1:]}, {self._places}, {w.size}, {w.stride}, {w.padding}"
        return [
            "from csrun.kernels import pooling, windows",
            f"{self._variable(name, 'taps')} = windows.taps({where}, {w.dilation})",
        ]

    @property
    def _places(self) -> Shape:
        return self._maps.shape[1:]

    def _variable(self, name: Name, what: str) -> str:
        return f"{name(self.results[0])}_{what}"

    def _call(self, name: Name, function: str, *others: str) -> list[str]:
        back = "_backward" if self.phase is Phase.BACKWARD else ""
        arrays = ", ".join(map(name, (*self.operands, *self.results)))
        return [f"pooling.{function}{back}({arrays}, {', '.join(others)})"]


@dataclass(frozen=True)
class MaxPool(Pooling):
    """Maxima and their positions in the windows, or the gradient."""

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return a pixel of all windows; its index, or bits, where it is the maximum; and that
        mask.
        """
        dtype = self._maps.dtype
        if self.phase is Phase.BACKWARD:
            bits = "int64" if dtype == "float64" else "int32"
            return self._own("share", dtype), self._own("took", bits)
        seen, numbers = self._own("seen", dtype), self._own("numbers", OFFSET)
        return seen, numbers, self._own("chosen", "bool")

    def prepare(self, name: Name) -> list[str]:
        lines = super().prepare(name)
        if self.phase is Phase.FORWARD:
            arguments = f"{self._places}, {self._variable(name, 'taps')}, {self.windows.size[1]}"
            first = self._variable(name, "first")
            lines.append(f"{first} = pooling.first_inside({arguments})")
        return lines

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        first = [self._variable(name, "first")] if self.phase is Phase.FORWARD else []
        scratch = f"({', '.join(map(name, self.scratch))})"
        own = [scratch, *first, self._variable(name, "taps")]
        return self._call(name, "max_pool", *own, str(self.windows.size[1]))


@dataclass(frozen=True)
class AveragePool(Pooling):
    """Means, or each pixel's share; with `counts_padding` zeros around the image count."""

    counts_padding: bool = True

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return the shares of a window's pixels, in the backward pass."""
        return (self._own("shares", self._maps.dtype),) if self.phase is Phase.BACKWARD else ()

    def prepare(self, name: Name) -> list[str]:
        found = f"np.full({self._places}, {prod(self.windows.size)}, '{self._maps.dtype}')"
        if not self.counts_padding:
            arguments = f"{self._places}, {self._variable(name, 'taps')}, '{self._maps.dtype}'"
            found = f"pooling.counts_inside({arguments})"
        return [*super().prepare(name), f"{self._variable(name, 'counts')} = {found}"]

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        tile = name(self.scratch[0]) if self.scratch else str(self._tile)
        counts, taps = (self._variable(name, what) for what in ("counts", "taps"))
        return self._call(name, "avg_pool", counts, tile, taps)


def match_pooling(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, PoolingOp)
    graph.take(operation)
    backward = isinstance(operation, MaxPool2dBackwardOp | AvgPool2dBackwardOp)
    common = (
        graph.layer_of(operation),
        tuple(_planes(graph.array(value)) for value in operation.operands),
        tuple(_planes(graph.array(value)) for value in operation.results),
        operation.windows,
        Phase.BACKWARD if backward else Phase.FORWARD,
    )
    if isinstance(operation, MaxPool2dOp | MaxPool2dBackwardOp):
        return MaxPool(*common)
    return AveragePool(*common, bool(integer(operation.properties, "count_include_pad")))


def _planes(array: Array) -> Array:
    """View [N, C, H, W] as [N C, H, W]."""
    samples, channels, *plane = array.shape
    found = array.reshaped((samples * channels, *plane))
    assert found is not None, "a copy was inserted before an array whose rows are not a view"
    return found


MATCHERS: dict[str, Matcher] = dict.fromkeys(
    (MaxPool2dOp.name, MaxPool2dBackwardOp.name, AvgPool2dOp.name, AvgPool2dBackwardOp.name),
    match_pooling,
)
