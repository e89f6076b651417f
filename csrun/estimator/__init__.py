"""Trains and evaluates a model function: compile, lease a system, hand the runtime both."""

from csrun.estimator.config import CSEstimatorSpec, CSRunConfig, WarmStart
from csrun.estimator.estimator import CerebrasEstimator

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "WarmStart"]
