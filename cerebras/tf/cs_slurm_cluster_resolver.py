"""Tasks of a job, as scripts of the original's older releases ask for them."""

from csrun.tensorflow.tf_helpers import CSSlurmClusterResolver

__all__ = ["CSSlurmClusterResolver"]
