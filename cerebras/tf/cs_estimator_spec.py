"""Result of a model_fn."""

from csrun.tensorflow import CSEstimatorSpec

__all__ = ["CSEstimatorSpec"]
