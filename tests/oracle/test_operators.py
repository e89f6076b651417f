"""PyTorch's own samples of its operators: equal results, or the refusals of the table."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support import oracle_tables  # noqa: E402
from support.oracle import operators  # noqa: E402
from support.oracle_tables import OPERATORS  # noqa: E402

# The databases' own warnings, of samples that use what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

#: A few of each family, and refusals of several forms.
QUICK = (
    "atan2",
    "logcumsumexp",
    "logsumexp",
    "max.reduction_with_dim",
    "nn.functional.hardsigmoid",
    "slice_scatter",
    "cummax",
    "masked_select",
    "fft.hfft",
    "nn.functional.multi_margin_loss",
    "quantile",
)
BLOCKS = 32  # of all operators


def test_some_operators_are_pytorchs_or_refused(tmp_path: Path) -> None:
    assert not oracle_tables.problems(OPERATORS, QUICK, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_operators_are_pytorchs_or_refused(block: int, tmp_path: Path) -> None:
    names = list(operators())[block::BLOCKS]
    assert not oracle_tables.problems(OPERATORS, names, tmp_path)


@pytest.mark.slow
def test_the_table_names_operators_of_the_database() -> None:
    assert set(oracle_tables.read(OPERATORS)) <= set(operators())
