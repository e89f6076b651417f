"""Local variables of a program, and the NumPy expressions of views."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from csrun.base.identifier import identifier
from csrun.compiler.graph.array import Array, Shape
from csrun.executable import INPUT, InputSpec


class Names:
    """Local variables of a program: one per view, each bound before its use."""

    def __init__(self, shapes: Mapping[str, Shape], inputs: Sequence[InputSpec]) -> None:
        self._shapes = shapes
        self._inputs = {INPUT + spec.name: spec for spec in inputs}
        self._taken: set[str] = set()
        self._variables: dict[Array, str] = {}
        self.inputs = {INPUT + spec.name: self._new(spec.name) for spec in inputs}
        self.bindings: list[str] = []
        self.viewed_inputs: dict[str, str] = {}

    def of(self, array: Array) -> str:
        """Return the variable of a view."""
        if array not in self._variables:
            self._variables[array] = self._bind(array)
        return self._variables[array]

    def _bind(self, array: Array) -> str:
        spec = self._inputs.get(array.name)
        if spec is not None:
            whole_input = self.inputs[array.name]
            text = expression(array, whole_input, spec.shape)
            if text == whole_input:
                return text
            variable = self._new(_stem(array, whole_input, spec.shape))
            self.viewed_inputs[variable] = f"{variable} = {text}"
            return variable
        shape = self._shapes[array.name]
        whole = Array(array.name, shape, array.dtype)
        if array == whole:
            variable = self._new(array.name)
            self.bindings.append(f'{variable} = v["{array.name}"]')
            return variable
        text = expression(array, self.of(whole), shape)
        variable = self._new(_stem(array, array.name, shape))
        self.bindings.append(f"{variable} = {text}")
        return variable

    def _new(self, text: str) -> str:
        stem = identifier(text)
        variable, count = stem, 1
        while variable in self._taken:
            variable, count = f"{stem}_{count}", count + 1
        self._taken.add(variable)
        return variable


def _stem(array: Array, name: str, shape: Shape) -> str:
    if len(shape) == 2 and array == Array(name, shape, array.dtype).permuted((1, 0)):
        return f"{name}_t"
    return f"{name}_as_{'_'.join(map(str, array.shape))}"


def expression(array: Array, base: str, shape: Shape) -> str:
    """Return NumPy's expression for a view of the contiguous array `base` of this shape."""
    if not prod(array.shape):
        return f"np.ravel({base})[:0].reshape({array.shape})"
    repeated = {d for d, stride in enumerate(array.strides) if not stride and array.shape[d] > 1}
    if repeated:
        once = tuple(1 if d in repeated else n for d, n in enumerate(array.shape))
        inner = Array(array.name, once, array.dtype, array.offset, array.strides)
        return f"np.broadcast_to({expression(inner, base, shape)}, {array.shape})"
    if array.is_contiguous and prod(array.shape) == prod(shape):
        return base if array.shape == shape else f"{base}.reshape({array.shape})"
    return _part(array, base, shape) or _strided(array, base)


def _part(array: Array, base: str, shape: Shape) -> str | None:
    """Return a reshape, slices and a transpose that give the view; None if there are none.

    An axis of the reshaped base has as many elements as fit into the next longer stride.
    """
    order = sorted(range(len(array.shape)), key=lambda d: (-array.strides[d], d))
    strides = [array.strides[d] for d in order]
    sizes = [array.shape[d] for d in order]
    if strides[-1:] != [1]:  # elements between those of the last axis
        strides, sizes = [*strides, 1], [*sizes, 1]
    longer = [prod(shape), *strides[:-1]]
    if any(long % short for long, short in zip(longer, strides, strict=True)):
        return None
    whole = tuple(long // short for long, short in zip(longer, strides, strict=True))
    starts = [array.offset % long // short for long, short in zip(longer, strides, strict=True)]
    if any(at + n > m for at, n, m in zip(starts, sizes, whole, strict=True)):
        return None
    text = base if whole == shape else f"{base}.reshape({whole})"
    cuts = [
        ":" if n == m else f"{at}:{at + n}" for at, n, m in zip(starts, sizes, whole, strict=True)
    ]
    if len(whole) > len(order):
        cuts[-1] = str(starts[-1])
    if not order:
        cuts.append("...")  # a plain index would give a number instead of a view
    if set(cuts) != {":"}:
        text += f"[{', '.join(cuts)}]"
    dims = tuple(order.index(d) for d in range(len(order)))
    if dims == tuple(range(len(dims))):
        return text
    return f"{text}.T" if dims == (1, 0) else f"{text}.transpose({dims})"


def _strided(array: Array, base: str) -> str:
    itemsize = np.dtype(array.dtype).itemsize
    strides = tuple(stride * itemsize for stride in array.strides)
    whole = f"np.ravel({base})[{array.offset}:]"
    return f"np.lib.stride_tricks.as_strided({whole}, {array.shape}, {strides})"
