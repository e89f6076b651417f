"""Options of a CS system under the original's names."""

from types import SimpleNamespace


class CSConfig(SimpleNamespace):
    """Any options; they are read by CSRunConfig."""


__all__ = ["CSConfig"]
