"""PyTorch's own samples of its modules, in training and evaluation, with all gradients."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support import oracle_tables  # noqa: E402
from support.oracle import modules  # noqa: E402
from support.oracle_tables import MODULES  # noqa: E402

# The databases' own warnings, of samples that use what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("Bilinear", "GroupNorm", "SmoothL1Loss", "Conv3d")
BLOCKS = 10  # of all modules


def test_some_modules_are_pytorchs_or_refused(tmp_path: Path) -> None:
    assert not oracle_tables.problems(MODULES, QUICK, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_modules_are_pytorchs_or_refused(block: int, tmp_path: Path) -> None:
    names = list(modules())[block::BLOCKS]
    assert not oracle_tables.problems(MODULES, names, tmp_path)


@pytest.mark.slow
def test_the_table_names_modules_of_the_database() -> None:
    assert set(oracle_tables.read(MODULES)) <= set(modules())
