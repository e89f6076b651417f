"""What the tests of this folder share: programs that nobody reads."""

import pytest


@pytest.fixture(autouse=True)
def _without_texts(no_texts: None) -> None:
    """The models are the largest that tests compile: their texts take a tenth of the time."""
