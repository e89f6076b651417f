"""Model and input function to a run: compile, lease a system, hand both to the runtime."""

from csrun.estimator.config import CSEstimatorSpec, CSRunConfig, WarmStart
from csrun.estimator.estimator import CerebrasEstimator

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "WarmStart"]
