"""Layers of the original. Implemented in `csrun.pytorch.framework.model_outputs`."""

from csrun.pytorch.framework.model_outputs import StripPadding

__all__ = ["StripPadding"]
