"""Fixture of the runtime's tests: programs are compiled without texts."""

import pytest


@pytest.fixture(autouse=True)
def _programs_are_shared(shared_programs: None) -> None:
    """Share compiles of the same few networks."""
