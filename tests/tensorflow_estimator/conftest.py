"""What the tests of this folder share: programs that many of them compile."""

import pytest


@pytest.fixture(autouse=True)
def _compiles_are_kept(kept_compiles: None) -> None:
    """Nobody reads a text of their programs."""
