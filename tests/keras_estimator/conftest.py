"""Fixture of this folder: a shared compile cache."""

import pytest


@pytest.fixture(autouse=True)
def _compiles_are_kept(kept_compiles: None) -> None:
    """Share compiles of the same small models, and skip their texts."""
