"""Element types of a setting, which have no effect."""

T_F16 = 1
T_CB16 = 2

__all__ = ["T_CB16", "T_F16"]
