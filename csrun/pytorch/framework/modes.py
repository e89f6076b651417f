"""Modes of a run, and scopes of names."""

from collections.abc import Iterator
from contextlib import contextmanager

TRAIN, EVAL, TRAIN_AND_EVAL, INFERENCE = "train", "eval", "train_and_eval", "inference"


def get_modes() -> tuple[str, ...]:
    """Return all modes."""
    return TRAIN, EVAL, TRAIN_AND_EVAL, INFERENCE


def is_valid(mode: str) -> bool:
    """True for one of the modes."""
    return mode in get_modes()


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Name the operators of the block; no effect, as csrun names them by layer and line."""
    yield
