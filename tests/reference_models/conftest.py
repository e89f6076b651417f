"""Fixture of this folder: programs are compiled without texts."""

import pytest


@pytest.fixture(autouse=True)
def _without_texts(no_texts: None) -> None:
    """Skip the texts of the largest models in the tests, a tenth of their compile time."""
