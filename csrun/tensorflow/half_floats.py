"""16-bit floats in a model_fn, whose graph is float32."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from csrun.base.callers import user_line

log = logging.getLogger("csrun")

HALVES = ("float16", "bfloat16")
_NAMES = ("float16", "half", "bfloat16")
_said: set[str] = set()


def log_widened() -> None:
    """Log once that 16-bit floats of a graph are float32."""
    if not _said:
        _said.add("float16")
        log.info(f"{user_line()}: casts to float16 and bfloat16 have no effect on arithmetic")


@contextmanager
def without_halves(tf: Any) -> Iterator[None]:
    """Context manager in which 16-bit types, and casts to them, are float32."""
    cast = tf.cast

    def widened(x: Any, dtype: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(dtype, "name", dtype) in HALVES:
            log_widened()
            dtype = tf.float32
        return cast(x, dtype, *arguments, **options)

    with ExitStack() as stack:
        for module in (tf, tf.compat.v1):
            stack.enter_context(patch.object(module, "cast", widened))
            for name in _NAMES:
                stack.enter_context(patch.object(module, name, tf.dtypes.as_dtype("float32")))
        yield
