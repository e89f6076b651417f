"""Structure of an element: nested tuples and dicts of arrays, and its flat tuple.

Arrays are passed flat through a pipeline and to the wafer. User code, a function of a `map` or a
model function, gets them in the structure that the previous function returned.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from csrun.data.errors import DataError
from csrun.data.formats.base import Array, Sample

#: Structure: None is an array, dicts are in the order of their keys.
Tree = None | tuple["Tree", ...] | dict[str, "Tree"]
NAMES = ("features", "labels")  # arguments of model_fn, and keys of a dict of both
SEPARATOR = "/"
_PLAIN = (np.ndarray, np.generic, int, float)  # types that are certainly a single array
_ARRAYS = {np.ndarray}


def flatten(value: Any, path: str = "input_fn") -> tuple[Tree, list[Array]]:
    """Return the arrays of a value, and their structure; `path` is its name in messages.

    Anything but a dict or tuple is converted by NumPy: a list of numbers is a vector.

    Raises: DataError for an empty tuple or dict, or a key that cannot be part of a name
    """
    if isinstance(value, np.ndarray):
        return None, [value]
    if isinstance(value, Mapping):
        _require_keys(value, path)
        # Two dicts of the same keys must be of the same structure, in whatever order they were
        # filled.
        keys = sorted(value)
        parts = [flatten(value[key], f"{path}{SEPARATOR}{key}") for key in keys]
        trees: Tree = {key: tree for key, (tree, _) in zip(keys, parts, strict=True)}
    elif _nests(value):
        if not value:
            raise DataError(f"input_fn: {path}: a tuple must not be empty")
        parts = [flatten(part, f"{path}{SEPARATOR}{i}") for i, part in enumerate(value)]
        trees = tuple(tree for tree, _ in parts)
    else:
        return None, [np.asarray(value)]
    return trees, [array for _, arrays in parts for array in arrays]


def unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    """Put leaves into a structure, taking as many as it has arrays."""
    if tree is None:
        return next(leaves)
    if isinstance(tree, dict):
        return {key: unflatten(part, leaves) for key, part in tree.items()}
    return tuple(unflatten(part, leaves) for part in tree)


def paths(tree: Tree, name: str) -> list[str]:
    """Return the names of a structure's arrays: `features`, `features/0`, `features/ids`."""
    if tree is None:
        return [name]
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [path for key, part in parts for path in paths(part, f"{name}{SEPARATOR}{key}")]


def names_of(trees: Sequence[Tree]) -> list[str]:
    """Return the names of an element's arrays: features, labels, then unnamed ones."""
    roots = (*NAMES, *(f"part {number}" for number in range(len(NAMES), len(trees))))
    return [path for tree, root in zip(trees, roots, strict=False) for path in paths(tree, root)]


class Elements:
    """Structure of the elements of a pipeline stage, taken from the first one.

    Elements are tuples of arguments: (features,), (features, labels). Samples of files are flat
    tuples, without a structure.
    """

    def __init__(self, trees: tuple[Tree, ...] | None = None) -> None:
        self._know(trees)

    def _know(self, trees: tuple[Tree, ...] | None) -> None:
        self._trees = trees
        #: Number of arrays of a flat element, the usual case.
        self._flat = len(trees) if trees and all(tree is None for tree in trees) else 0

    def taken(self, value: Any) -> Sample:
        """Flatten the result of a user's function or iterable.

        Raises: DataError for an element of another structure than the first one
        """
        # A fast path: this runs for each sample of a map.
        if type(value) is tuple and len(value) == self._flat:
            kinds = {*map(type, value)}
            if kinds == _ARRAYS:
                return value
            if all(issubclass(kind, _PLAIN) for kind in kinds):
                return tuple(map(np.asarray, value))
        parts = [flatten(part, name) for part, name in _arguments(value)]
        trees = tuple(tree for tree, _ in parts)
        if self._trees is None:
            self._know(trees)
        elif trees != self._trees:
            raise DataError(f"input_fn: {_difference(self._trees, trees)}")
        return tuple(array for _, arrays in parts for array in arrays)

    def given(self, sample: Sequence[Any]) -> tuple[Any, ...]:
        """Nest a flat element into arguments."""
        if self._flat or self._trees is None:
            return tuple(sample)
        leaves = iter(sample)
        return tuple(unflatten(tree, leaves) for tree in self._trees)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of these elements as one of flat elements."""
        return lambda *sample: function(*(sample if self._flat else self.given(sample)))

    def results_of(self, function: Callable[..., Any]) -> Callable[..., Sample]:
        """Wrap a function that returns these elements as one that returns them flat."""
        return lambda *sample: self.taken(function(*sample))

    def names(self, count: int) -> list[str]:
        """Return the names of an element's arrays."""
        return names_of(self._trees or (None,) * count)


def _arguments(value: Any) -> list[tuple[Any, str]]:
    """Return the arguments of a model function with their names."""
    if isinstance(value, Mapping) and NAMES[0] in value:
        unknown = sorted(str(key) for key in value if key not in NAMES)
        if unknown:
            raise DataError(
                f"input_fn: a dict with the key {NAMES[0]} may only have the further key "
                f"{NAMES[1]}, "
                f"got {', '.join(unknown)}: nest them in {NAMES[0]}"
            )
        value = tuple(value[name] for name in NAMES if name in value)
    parts = value if isinstance(value, tuple | list) else (value,)
    roots = (*NAMES, *(f"part {number}" for number in range(len(NAMES), len(parts))))
    return list(zip(parts, roots, strict=False))


def _nests(value: Any) -> bool:
    """True for a tuple, or a list of tensors as torch collates tuples."""
    if isinstance(value, list):
        return bool(value) and all(type(x).__module__.split(".")[0] == "torch" for x in value)
    return isinstance(value, tuple)


def _require_keys(value: Mapping[Any, Any], path: str) -> None:
    for key in value:
        if not isinstance(key, str) or not key or SEPARATOR in key:
            raise DataError(
                f"input_fn: {path}: a key must be a string without {SEPARATOR!r}, got {key!r}"
            )
    if not value:
        raise DataError(f"input_fn: {path}: a dict must not be empty")


def _difference(first: tuple[Tree, ...], other: tuple[Tree, ...]) -> str:
    had, has = names_of(first), names_of(other)
    missing = [f"no {name}" for name in had if name not in has]
    new = [name for name in has if name not in had]
    return (
        f"all elements must have the arrays of the first one, {', '.join(had)}, "
        f"got {', '.join([*missing, *new]) or 'another order'}"
    )
