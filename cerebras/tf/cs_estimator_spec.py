"""What a model_fn returns."""

from csrun.tensorflow import CSEstimatorSpec

__all__ = ["CSEstimatorSpec"]
