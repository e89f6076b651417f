"""Switches of summaries: csrun keeps the scalars that a loss is computed from."""

from csrun.tensorflow.tf_helpers import (
    cs1_disable_summaries,
    cs1_enable_summaries,
    summary_layer,
)

__all__ = ["cs1_disable_summaries", "cs1_enable_summaries", "summary_layer"]
