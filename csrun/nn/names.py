"""Unique layer names: dense, dense_1, dense_2, …"""

import re
from collections import Counter

from csrun.nn.errors import TraceError, user_line

LAYER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(/[A-Za-z_][A-Za-z0-9_.]*)*")


class LayerNames:
    """Hands out each layer name once."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._counts: Counter[str] = Counter()

    def unique(self, base: str) -> str:
        """`base`, with a number when it is taken."""
        while True:
            number = self._counts[base]
            self._counts[base] += 1
            name = f"{base}_{number}" if number else base
            if name not in self._given:
                self._given.add(name)
                return name

    def claim(self, name: str) -> str:
        """A name that the user chose.

        Raises: TraceError when it is malformed or taken
        """
        if not LAYER_NAME.fullmatch(name):
            raise TraceError(
                f"{user_line()}: a layer's name must be letters, digits, '_', '.' and '/', "
                f"got {name!r}"
            )
        if name in self._given:
            raise TraceError(
                f"{user_line()}: layer names must be unique, {name!r} is taken: "
                "give another name, or none to have one made"
            )
        self._given.add(name)
        return name
