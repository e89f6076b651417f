"""Keras models on a CS system. Keras and PyTorch are only imported where a model is traced."""

from csrun.context import use_torch_for_keras
from csrun.keras.model_estimator import KerasModelToCerebrasEstimator

__all__ = ["KerasModelToCerebrasEstimator"]

use_torch_for_keras()  # before the script imports Keras
