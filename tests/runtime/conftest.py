"""What the runtime's tests share: programs, which they run and do not look at."""

import pytest


@pytest.fixture(autouse=True)
def _programs_are_shared(shared_programs: None) -> None:
    """Most of them compile one of a few networks."""
