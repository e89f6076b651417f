"""Cache of the last step's optimizer numbers, such as learning rates, until param_groups change.

Scripts write into `param_groups`, which are plain dicts. A comparison of all objects in them takes
a microsecond, reading them as numbers ten.
"""

from collections.abc import Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

_PARAMS = itemgetter("params")
_IMMUTABLE = (bool, int, float, str, type(None))
Groups = Sequence[dict[str, Any]]


class KnownNumbers:
    """Numbers of the last step, and the objects in the groups at that time."""

    def __init__(self) -> None:
        self._numbers: tuple[float, ...] | None = None
        self._basis: tuple[Any, ...] = ()
        self._values: list[Any] = []
        self._sizes: list[int] = []
        self._params: list[Any] = []

    def find(self, groups: Groups, basis: tuple[Any, ...]) -> tuple[float, ...] | None:
        """Return the numbers; None if they may have changed.

        basis: other inputs of the numbers than the groups' values and parameters.
        """
        if self._numbers is None or basis != self._basis:
            return None
        now = [*chain.from_iterable(map(dict.values, groups))]
        if len(now) != len(self._values) or not all(map(is_, now, self._values)):
            return None
        if [*map(len, map(_PARAMS, groups))] != self._sizes:
            return None
        params = chain.from_iterable(map(_PARAMS, groups))
        return self._numbers if all(map(is_, params, self._params)) else None

    def keep(self, groups: Groups, basis: tuple[Any, ...], numbers: tuple[float, ...]) -> None:
        """Keep the numbers, unless an option may change without being replaced."""
        options = (each for group in groups for key, each in group.items() if key != "params")
        self._numbers = numbers if all(map(_is_immutable, options)) else None
        self._basis = basis
        self._values = [*chain.from_iterable(map(dict.values, groups))]
        self._sizes = [*map(len, map(_PARAMS, groups))]
        self._params = [*chain.from_iterable(map(_PARAMS, groups))]

    def forget(self) -> None:
        """Drop the numbers, because they change in each step."""
        self._numbers = None


def _is_immutable(value: Any) -> bool:
    """False for a value that may change without being replaced, such as a tensor or a list."""
    return all(map(_is_immutable, value)) if type(value) is tuple else type(value) in _IMMUTABLE
