"""16-bit floats of a graph: in a float32 run they mean float32."""

import logging
from typing import Any

from csrun.tensorflow.errors import line_of

log = logging.getLogger("csrun")

_said: set[str] = set()


def say_widened(op: Any) -> None:
    """Log once that 16-bit floats are float32. op: has them, or None."""
    if not _said:
        _said.add("float16")
        place = f"{line_of(op)}: " if op is not None else ""
        log.info(f"{place}values of float16 or bfloat16 are float32, as all arithmetic is")
