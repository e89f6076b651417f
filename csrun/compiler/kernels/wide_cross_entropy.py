"""Softmax cross entropy over many classes: only the logits and one gradient are [N, C]."""

from dataclasses import dataclass

from csrun.compiler.array import Array
from csrun.compiler.kernels.base import Name
from csrun.compiler.kernels.softmax_cross_entropy import (
    CrossEntropyBackward,
    CrossEntropyForward,
    Parts,
)
from csrun.executable import nbytes_of

TILE_BYTES = 512 << 10  # a few rows, which a core's L2 holds


def sums_of(parts: Parts) -> Array:
    """What forward keeps: the logarithm of each row's sum."""
    return Array(f"{parts.stem}/sums", parts.logits.shape[:1], parts.logits.dtype)


def tile_rows(logits: Array) -> int:
    """Rows a tile."""
    rows, columns = logits.shape
    return max(1, min(rows, TILE_BYTES // nbytes_of((columns,), logits.dtype)))


@dataclass(frozen=True)
class WideForward(CrossEntropyForward):
    """As the narrow one, a tile of rows at a time."""

    @property
    def writes(self) -> tuple[Array, ...]:
        """The loss, and what backward needs."""
        mean = () if self.mean is None else (self.mean,)
        return self.loss, sums_of(self.parts), self.parts.ignored, *mean

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Row losses, a tile, classes; and, for labels that nobody has seen, which are none."""
        logits, stem = self.parts.logits, self.parts.stem
        (rows, columns), dtype = logits.shape, logits.dtype
        bad = () if self.parts.is_checked else (Array(f"{stem}/bad", (rows,), "bool"),)
        return (
            Array(f"{stem}/row_losses", (rows,), dtype),
            Array(f"{stem}/tile", (tile_rows(logits), columns), dtype),
            self.parts.places(stem),
            *bad,
        )

    def prepare(self, name: Name) -> list[str]:
        return self.parts.imports

    def emit(self, name: Name) -> list[str]:
        """A call, and what makes one number of the row losses."""
        parts = self.parts
        losses, tile, places, *_ = self.scratch
        arrays = (parts.logits, parts.labels, losses, sums_of(parts), tile)
        arguments = ", ".join(map(name, arrays))
        smoothing = repr(parts.smoothing)
        return [
            f"cross_entropy.row_losses({arguments}, {parts.numbers}, {name(places)}, {smoothing})",
            *self.of_rows(name(losses), name),
        ]


@dataclass(frozen=True)
class WideBackward(CrossEntropyBackward):
    """As the narrow one, a tile of rows at a time, from the logits."""

    @property
    def reads(self) -> tuple[Array, ...]:
        """What forward left, the logits and the labels."""
        parts = self.parts
        scale = () if isinstance(self.scale, str) else (self.scale,)
        return parts.logits, sums_of(parts), parts.ignored, parts.labels, *scale

    @property
    def scratch(self) -> tuple[Array, ...]:
        return (self.parts.places(self.gradient.name),)

    def prepare(self, name: Name) -> list[str]:
        return self.parts.imports

    def emit(self, name: Name) -> list[str]:
        """One call."""
        parts = self.parts
        arrays = (parts.logits, parts.labels, sums_of(parts), parts.ignored)
        scale = self.scale if isinstance(self.scale, str) else name(self.scale)
        arguments = ", ".join([*map(name, arrays), scale, name(self.gradient)])
        others = f"{parts.numbers}, {name(*self.scratch)}, {tile_rows(parts.logits)}"
        return [f"cross_entropy.row_gradients({arguments}, {others}, {parts.smoothing!r})"]
