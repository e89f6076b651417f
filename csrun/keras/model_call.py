"""Context managers of the one call of a Keras model that is recorded."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras


@contextmanager
def without_host_draws() -> Iterator[None]:
    """Raises: UsageError if the model draws numbers from NumPy or Python within the block

    Each step would use the same numbers.
    """
    before = _host_generators()
    yield
    for name, state in _host_generators().items():
        if state != before[name]:
            raise UsageError(
                f"the Keras model draws numbers from {name}, and csrun calls it once: have the "
                "input_fn give the numbers as a feature"
            )


def _host_generators() -> dict[str, Any]:
    """Return states of the global generators that a layer may draw from."""
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict), "not the legacy form"
    return {"numpy.random": repr(state), "random": random.getstate()}


@contextmanager
def plain_errors() -> Iterator[None]:
    """Context manager in which Keras does not add a layer's arguments to errors."""
    was_filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    try:
        yield
    finally:
        if was_filtered:
            keras.config.enable_traceback_filtering()
