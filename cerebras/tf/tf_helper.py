"""Helpers of model functions."""

from csrun.tensorflow.tf_helpers import (
    GetWeights,
    boundary_cast,
    summarize_tensor,
    summary_layer,
)

__all__ = ["GetWeights", "boundary_cast", "summarize_tensor", "summary_layer"]
