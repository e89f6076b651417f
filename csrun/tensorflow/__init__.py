"""TensorFlow 1 estimators on a CS system. TensorFlow is only imported where a model is traced."""

from csrun.tensorflow.tf_estimator import CerebrasEstimator
from csrun.tensorflow.tf_run_config import CSRunConfig
from csrun.tensorflow.tf_spec import CSEstimatorSpec

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator"]
