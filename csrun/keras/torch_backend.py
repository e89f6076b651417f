"""Import of Keras 3 on its PyTorch backend, which csrun records."""

import importlib
from typing import Any

from csrun.base.errors import UsageError
from csrun.base.framework import KERAS
from csrun.context import use_torch_for_keras


def require_keras() -> Any:
    """Import Keras and return it.

    Raises: UsageError without Keras or PyTorch, for another version, or for another backend
    """
    use_torch_for_keras()
    try:
        found = importlib.import_module("keras")
    except ImportError as error:
        raise UsageError(
            f"Keras models need Keras 3 and PyTorch ({error}): {KERAS.install}"
        ) from error
    version = getattr(found, "__version__", "of unknown version")
    if not KERAS.supports(version):
        raise UsageError(f"Keras must be {KERAS.versions}, got {version}: {KERAS.install}")
    if found.config.backend() != "torch":
        raise UsageError(
            f"Keras uses the backend {found.config.backend()}, csrun records that of PyTorch: set "
            "KERAS_BACKEND=torch, or import csrun.keras before keras"
        )
    return found


keras = require_keras()
