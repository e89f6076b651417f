"""The estimator: trains and evaluates a traced model on a CS system, or on the CPU."""

from csrun.frontend.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig, WarmStart

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "WarmStart"]
