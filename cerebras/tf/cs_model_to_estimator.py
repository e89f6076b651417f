"""`csrun.keras`'s estimator of a Keras model."""

from csrun.keras import KerasModelToCerebrasEstimator

__all__ = ["KerasModelToCerebrasEstimator"]
