"""Model and input function to a run: compile, lease a system, hand both to the runtime."""

from csrun.base.run_config import CSRunConfig, WarmStart
from csrun.estimator.config import CSEstimatorSpec
from csrun.estimator.estimator import CerebrasEstimator

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "WarmStart"]
