"""Images are not written."""

from typing import Any


def save_image(*arguments: Any, **options: Any) -> None:
    """Do nothing."""


def make_grid(tensor: Any, **options: Any) -> Any:
    return tensor
