"""Policies of kernel generation, which have no effect."""

AP_DISABLED = 1

__all__ = ["AP_DISABLED"]
