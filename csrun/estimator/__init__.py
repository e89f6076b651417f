"""Estimator: compile a model function, lease a system, run it on the data of an input function."""

import atexit
import gc

from csrun.base.excepthook import install_excepthook
from csrun.base.run_config import CSRunConfig, WarmStart
from csrun.estimator.config import CSEstimatorSpec
from csrun.estimator.estimator import CerebrasEstimator

__all__ = ["CSEstimatorSpec", "CSRunConfig", "CerebrasEstimator", "WarmStart"]

install_excepthook()  # all front ends import this package

# Python's last garbage collection would free all modules object by object: 0.3 s of csrun's, 1.5 s
# of PyTorch's.
atexit.register(gc.freeze)
