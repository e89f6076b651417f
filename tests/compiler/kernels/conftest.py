"""What the tests of this folder share: programs that they run, and whose texts nobody reads."""

import pytest


@pytest.fixture(autouse=True)
def _without_texts(no_texts: None) -> None:
    """Texts of passes and of kernels take a fifth of a small compile's time."""
