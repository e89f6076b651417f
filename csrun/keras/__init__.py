"""Keras models on a CS system. Keras and PyTorch are imported where a model is traced."""

from csrun.keras.model_estimator import KerasModelToCerebrasEstimator

__all__ = ["KerasModelToCerebrasEstimator"]
