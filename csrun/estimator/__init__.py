"""Estimator: compile a model function, lease a system, run it on the data of an input function."""

from csrun.base.run_config import CSRunConfig, WarmStart
from csrun.estimator.config import CSEstimatorSpec
from csrun.estimator.estimator import CerebrasEstimator

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "WarmStart"]
