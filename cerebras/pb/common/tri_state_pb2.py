"""States of a setting, which have no effect."""

TS_DISABLED = 1
TS_ENABLED = 2

__all__ = ["TS_DISABLED", "TS_ENABLED"]
