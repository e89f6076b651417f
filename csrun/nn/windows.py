"""Checks shared by the layers over images."""

from csrun.cirh.types import text_of, type_of
from csrun.nn.errors import ShapeError, TraceError, user_line
from csrun.nn.tensor import Tensor

Sizes = int | tuple[int, int]


def pair_of(layer: str, what: str, given: object, least: int = 1) -> tuple[int, int]:
    """Return a size for rows and columns, given as one number or a pair.

    Raises: TraceError for anything else, or a number below `least`
    """
    sizes = given if isinstance(given, tuple | list) else (given, given)
    fit = all(isinstance(n, int) and not isinstance(n, bool) and n >= least for n in sizes)
    if len(sizes) != 2 or not fit:
        raise TraceError(
            f"{user_line()}: {layer}: {what} must be one or two integers >= {least}, got {given!r}"
        )
    return sizes[0], sizes[1]


def require_images(x: Tensor, scope: str) -> None:
    """Raise ShapeError unless x has the four axes of images."""
    if len(x.shape) != 4:
        raise ShapeError(
            f"{user_line()}: layer {scope}: the input must be images [batch, channels, rows, "
            f"columns], got shape {text_of(type_of(x.value))}"
        )
