"""Reference models import their own modules by bare names, from their own folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "reference_models"


@pytest.fixture
def fc_mnist(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of fc_mnist, on the import path while a test runs."""
    folder = MODELS / "fc_mnist"
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)
