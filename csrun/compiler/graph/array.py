"""Arrays of a program: each a view of a base buffer, by offset, shape and strides in elements.

An operation that only changes the view (reshape, transpose, slice, broadcast) returns another
`Array` over the same base: it needs no kernel, and copies nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from operator import mul

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Array:
    """View of the buffer, parameter, gradient or input `name`.

    offset, strides: in elements; None: contiguous. Axes of size 1 have the stride that they would
        have in a contiguous array, so that equal views compare equal.
    is_weight: whether the base is a parameter.
    whole: shape of the base; None: the view's own.
    """

    name: str
    shape: Shape
    dtype: str
    offset: int = 0
    strides: Shape = ()
    is_weight: bool = field(default=False, compare=False)
    whole: Shape | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        dense = self.strides if self.strides and 0 not in self.shape else contiguous(self.shape)
        object.__setattr__(self, "strides", _plain(self.shape, dense))
        object.__setattr__(self, "whole", self.shape if self.whole is None else self.whole)

    @property
    def base(self) -> "Array":
        """The array that owns the memory of this view."""
        assert self.whole is not None, "set by the constructor"
        return Array(self.name, self.whole, self.dtype, is_weight=self.is_weight)

    @property
    def stem(self) -> str:
        """Name that is unique among the disjoint parts of its base."""
        return f"{self.name}/{self.offset}" if self.offset else self.name

    @property
    def is_contiguous(self) -> bool:
        """Return whether it is contiguous in row-major order."""
        return self.strides == contiguous(self.shape)

    @property
    def repeats(self) -> bool:
        """Return whether several of its elements share memory."""
        return any(n > 1 and not stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_matrix(self) -> bool:
        """Return whether BLAS accepts its last two axes: one contiguous, the other not shorter."""
        (rows, columns), (down, right) = self.shape[-2:], self.strides[-2:]
        return (right == 1 and down >= columns) or (down == 1 and right >= rows)

    def reshaped(self, shape: Shape) -> "Array | None":
        """Return the same elements, in row-major order, with another shape; None if that needs a
        copy.
        """
        strides = _strides_as(shape, self.shape, self.strides)
        return None if strides is None else replace(self, shape=shape, strides=strides)

    def permuted(self, dims: Sequence[int]) -> "Array":
        """Return the array whose axis i is axis dims[i] of this one."""
        shape, strides = (tuple(of[d] for d in dims) for of in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def sliced(self, dim: int, start: int, end: int, step: int = 1) -> "Array":
        """Return a slice of an axis: every `step`th element from `start`, before `end`."""
        shape, strides = list(self.shape), list(self.strides)
        shape[dim] = len(range(start, end, step))
        strides[dim] *= step
        offset = self.offset + start * self.strides[dim]
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def selected(self, dim: int, index: int) -> "Array":
        """Return the array at one index of an axis, without that axis."""
        shape, strides = ((*sizes[:dim], *sizes[dim + 1 :]) for sizes in (self.shape, self.strides))
        offset = self.offset + index * self.strides[dim]
        return replace(self, shape=shape, strides=strides, offset=offset)

    def expanded(self, shape: Shape) -> "Array":
        """Broadcast axes of size 1, and missing leading axes."""
        missing = len(shape) - len(self.shape)
        own = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        repeated = (s if n == m else 0 for n, m, s in zip(own, shape, strides, strict=True))
        return replace(self, shape=shape, strides=tuple(repeated))


def contiguous(shape: Shape) -> Shape:
    """Return the strides of a contiguous array."""
    return tuple(accumulate(shape[:0:-1], mul, initial=1))[::-1] if shape else ()


def _plain(shape: Shape, strides: Shape) -> Shape:
    """Return the strides with those of size-1 axes as if the array were contiguous there."""
    plain: list[int] = []
    dense = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        plain.append(dense if size == 1 else stride)
        dense = plain[-1] * size
    return tuple(reversed(plain))


def _strides_as(shape: Shape, own: Shape, strides: Shape) -> Shape | None:
    """Return the strides for another shape: each run of dense axes may be split differently.

    Source: NumPy's _attempt_nocopy_reshape
    """
    if not prod(shape):
        return contiguous(shape)
    runs: list[tuple[int, int]] = []  # elements, stride
    for size, stride in zip(own, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = runs[-1][0] * size, stride
        else:
            runs.append((size, stride))
    found: list[int] = []
    left, stride = runs.pop() if runs else (1, 1)
    for size in reversed(shape):
        if left == 1 and runs and size > 1:
            left, stride = runs.pop()
        if left % size:
            return None
        found.append(stride)
        left, stride = left // size, stride * size
    return tuple(reversed(found))
