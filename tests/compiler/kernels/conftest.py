"""Fixture of this folder: programs are compiled without texts."""

import pytest


@pytest.fixture(autouse=True)
def _without_texts(no_texts: None) -> None:
    """Skip the texts of passes and kernels, a fifth of a small compile's time."""
