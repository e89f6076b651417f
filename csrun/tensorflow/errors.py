"""Errors of a graph, with the Python line that created an operator."""

from pathlib import Path
from typing import Any

import csrun
from csrun.base.errors import UsageError

_CSRUN = str(Path(csrun.__file__).parent)
_FRAMEWORK = ("tensorflow", "tf_keras", "keras")


class GraphError(UsageError):
    """A model_fn whose graph csrun cannot compile."""


class UnsupportedOperator(Exception):  # noqa: N818  the importer adds the user's line and raises GraphError
    """An operator, or a form of one, that has no CIRH form."""


def line_of(op: Any) -> str:
    """Return `file:line` of the innermost frame outside TensorFlow and Keras that created an
    operator.
    """
    frames = [frame for frame in op.traceback if not _is_inside(frame.filename)]
    frame = frames[-1] if frames else op.traceback[-1]
    return f"{frame.filename}:{frame.lineno}"


def _is_inside(filename: str) -> bool:
    return filename.startswith((_CSRUN, "<")) or any(
        f"/site-packages/{package}/" in filename for package in _FRAMEWORK
    )


def refused(op: Any, why: object) -> GraphError:
    """Return the error of an operator: its line, kind and name, and the reason."""
    return GraphError(f"{line_of(op)}: TensorFlow operator {op.type} ({op.name}): {why}")
