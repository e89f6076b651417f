"""Elementwise functions and reductions in a model function."""

import pytest

from csrun import nn
from csrun.nn.tracer import Tracer


@pytest.fixture
def x():
    with Tracer("float32") as tracer:
        yield tracer.input("features", (8, 3, 5), "float32")


@pytest.mark.parametrize(
    ("axis", "keepdims", "shape"),
    [
        (-1, False, (8, 3)),
        (1, True, (8, 1, 5)),
        ((1, 2), False, (8,)),
        ((-1, 1), True, (8, 1, 1)),
    ],
)
def test_axes_go_or_stay_with_size_1(x, axis, keepdims, shape):
    assert nn.sum(x, axis, keepdims).shape == shape
    assert nn.mean(x, axis, keepdims).shape == shape


@pytest.mark.parametrize("axis", [3, -4, (1, 1), (1, -2), ()])
def test_an_axis_that_is_not_there_or_there_twice_is_refused(x, axis):
    for function in (nn.sum, nn.mean):
        with pytest.raises(nn.ShapeError, match=r"test_arithmetic.py:\d+: .*: axis .* \[8, 3, 5\]"):
            function(x, axis)


def test_a_mean_of_nothing_is_refused(x):
    with pytest.raises(nn.ShapeError, match=r"test_arithmetic.py:\d+: mean: .* has no elements"):
        nn.mean(x[:, 1:1])


@pytest.mark.parametrize("function", [nn.exp, nn.log, nn.sqrt])
def test_functions_keep_the_shape(x, function):
    assert function(x).shape == x.shape


OPERATORS = {
    "x // 2": (lambda x: x // 2, lambda x: nn.floor_divide(x, 2)),
    "7 // x": (lambda x: 7 // x, lambda x: nn.floor_divide(7, x)),
    "x % 3": (lambda x: x % 3, lambda x: nn.remainder(x, 3)),
    "7 % x": (lambda x: 7 % x, lambda x: nn.remainder(7, x)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_its_function(x, name):
    written, meant = (function(x).value.owner for function in OPERATORS[name])
    assert written.name == meant.name
    assert [each is x.value for each in written.operands] == [
        each is x.value for each in meant.operands
    ]
