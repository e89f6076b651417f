"""PyTorch's own samples of operators, by the front end: equal numbers, or a refusal with a line."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.oracle import Outcome, Report, operators, samples_of  # noqa: E402

#: None of whose samples is refused, a few of each family.
EQUAL = (
    "sin",
    "cos",
    "atan2",
    "erf",
    "expm1",
    "logaddexp",
    "remainder",
    "fmod",
    "div.floor_rounding",
    "round.decimals_3",
    "nn.functional.softplus",
    "nn.functional.celu",
    "nn.functional.linear",
    "take",
    "put",
    "unfold",
    "diagonal_scatter",
    "select_scatter",
    "slice_scatter",
    "prod",
    "logcumsumexp",
    "cdist",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.adaptive_max_pool2d",
    "nn.functional.pad.reflect",
    "nn.functional.pad.circular",
    "nn.functional.interpolate.bicubic",
    "nn.functional.interpolate.area",
    "nn.functional.gaussian_nll_loss",
)
REFUSED = ("masked_scatter", "linalg.matrix_rank", "scatter_reduce.amax")


@pytest.mark.filterwarnings("ignore")
def test_samples_of_operators_are_pytorchs_or_refused(tmp_path):
    known, report = operators(), Report(tmp_path)
    report.run({name: samples_of(known[name], 2) for name in (*EQUAL, *REFUSED)})
    assert not report.wrong
    assert {n: report.outcome(n) for n in EQUAL} == dict.fromkeys(EQUAL, Outcome.EQUAL)
    assert {n: report.outcome(n) for n in REFUSED} == dict.fromkeys(REFUSED, Outcome.REFUSED)
