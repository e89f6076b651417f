"""`csrun.tensorflow`'s estimator; TensorFlow gets the names that scripts of its time import."""

from csrun.tensorflow import CerebrasEstimator
from csrun.tensorflow.tf22_names import install

install()

__all__ = ["CerebrasEstimator"]
