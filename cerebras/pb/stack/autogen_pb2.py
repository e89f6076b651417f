"""Policies of kernel generation, which have no effect."""

AP_DISABLED = 1
AP_ENABLED = 2

__all__ = ["AP_DISABLED", "AP_ENABLED"]
