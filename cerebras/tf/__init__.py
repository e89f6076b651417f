"""Estimators under the names of the original's TensorFlow package."""
