"""Import of TensorFlow: check of its version, and Keras 2 as tf.keras."""

import importlib
import random
from typing import Any

from csrun.base.errors import UsageError
from csrun.base.framework import TENSORFLOW
from csrun.context import use_keras_2_for_tensorflow


def require_tensorflow() -> Any:
    """Import TensorFlow and return it.

    Raises: UsageError without TensorFlow, or for another version
    """
    use_keras_2_for_tensorflow()
    try:
        found = importlib.import_module("tensorflow")
    except ImportError as error:
        raise UsageError(
            f"TensorFlow models need TensorFlow ({error}): {TENSORFLOW.install}"
        ) from error
    version = getattr(found, "__version__", "of unknown version")
    if not TENSORFLOW.supports(version):
        raise UsageError(
            f"TensorFlow must be {TENSORFLOW.versions}, got {version}: {TENSORFLOW.install}"
        )
    return found


tf: Any = require_tensorflow()


def seed_keras(seed: int) -> None:
    """Make Keras 2's initializers, which draw their own seeds, draw them from a seed."""
    backend = importlib.import_module("tf_keras.src.backend")
    backend._SEED_GENERATOR.generator = random.Random(seed)
