"""Poolings in compiled programs, forward and backward, against PyTorch."""

import numpy as np
import pytest
from support.images import Case, check, stepped

from csrun import nn

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")
functional = torch.nn.functional
TOLERANCES = {"float32": 1e-6, "float64": 1e-14}
NAN, INF = float("nan"), float("inf")
EDGES = np.array([[NAN, 1, NAN, 0, 1], [3, -INF, -INF, INF, NAN], [-INF, -INF, 2, INF, 0]])


def largest(shape, size, images=None, **options):
    """A pooling layer and its PyTorch counterpart."""
    layer = nn.MaxPool(size, **options)
    return Case(layer, lambda x: functional.max_pool2d(x, size, **options), shape, images)


def means(shape, size, **options):
    layer = nn.AveragePool(size, **options)
    return Case(layer, lambda x: functional.avg_pool2d(x, size, **options), shape)


CASES = {
    "largest": largest((3, 2, 8, 6), 2),
    "rows_left_over": largest((3, 2, 7, 5), 2),
    "overlapping": largest((3, 2, 7, 5), 3, stride=1, padding=1),
    "strided": largest((3, 1, 9, 7), (3, 2), stride=(2, 3), padding=(1, 0)),
    "dilated": largest((3, 2, 9, 8), 2, stride=1, dilation=(3, 2), padding=1),
    "gaps": largest((3, 1, 9, 9), 2, stride=4),
    "one_place": largest((3, 4, 3, 3), 3),
    "equal_values": largest(
        (3, 2, 8, 8), 3, np.random.default_rng(2).integers(-1, 2, (3, 2, 8, 8)), stride=2
    ),
    "edges": largest((3, 1, 3, 5), 2, np.stack([EDGES] * 3)[:, None], stride=1, padding=1),
    "least": largest((3, 1, 2, 2), 2, np.full((3, 1, 2, 2), -INF), padding=1),
    "many_tiles": largest((3, 30, 64, 64), 2),
    "means": means((3, 2, 8, 6), 2),
    "means_of_rows_left_over": means((3, 2, 7, 5), 2),
    "means_with_padding": means((3, 2, 7, 5), 3, stride=2, padding=1),
    "means_without_padding": means((3, 2, 7, 5), 3, stride=2, padding=1, count_include_pad=False),
    "means_of_many_tiles": means((3, 30, 64, 64), (2, 3), stride=(2, 1)),
}


@pytest.fixture(scope="module", params=TOLERANCES)
def stepped_cases(request, tmp_path_factory):
    """Step of all cases, computed once in each precision."""
    with np.errstate(invalid="ignore"):  # as in an engine
        root = tmp_path_factory.mktemp(request.param)
        return stepped(root, CASES, request.param), TOLERANCES[request.param]


@pytest.mark.parametrize("name", CASES)
def test_a_pooling_and_its_gradient_are_pytorchs(stepped_cases, name):
    found, tolerance = stepped_cases
    check(CASES[name], found[name], torch, tolerance)
