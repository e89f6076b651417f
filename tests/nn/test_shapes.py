"""View operations in a model function: NumPy's shapes, and refused arguments."""

import numpy as np
import pytest

from csrun import nn
from csrun.nn.errors import TraceError
from csrun.nn.tracer import Tracer

HERE = r"test_shapes.py:\d+: "


@pytest.fixture
def x():
    with Tracer("float32") as tracer:
        yield tracer.input("x", (4, 3, 6), "float32")


@pytest.mark.parametrize(
    "key",
    [
        1, -1, (0, 1), (..., 2), (slice(None), slice(1, None)), (slice(1, 9, 2), ..., None),
        (None, 0, ..., -2), slice(3, 1), (1, slice(-2, None), 5), ..., (), (1, 2, 3), (1, 2, 3, ...)
    ],
    ids=str,
)  # fmt: skip
def test_parts_have_numpys_shapes(x, key):
    assert x[key].shape == np.zeros(x.shape)[key].shape


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (4, nn.ShapeError, "index 4 is out of range for axis 0 of shape"),
        ((0, 0, 0, 0), nn.ShapeError, "index .* does not match shape"),
        ((..., 0, ...), nn.ShapeError, "index .* does not match shape"),
        (slice(None, None, -1), nn.ShapeError, "a slice must have a positive step, got -1"),
        ([0, 1], TraceError, "an index must consist of integers, slices, ... and None"),
        (True, TraceError, "an index must consist of integers, slices, ... and None"),
        (0.0, TraceError, "an index must consist of integers, slices, ... and None"),
    ],
    ids=str,
)
def test_other_indices_are_refused_with_the_line(x, key, error, message):
    with pytest.raises(error, match=HERE + message):
        x[key]


def test_a_tensor_is_taken_apart_along_its_first_axis(x):
    first, *others = x
    assert [first.shape, len(others)] == [(3, 6), 3]


def test_reshape_transpose_broadcast_and_concatenate_have_numpys_shapes(x):
    zeros = np.zeros(x.shape)
    assert nn.reshape(x, (4, -1)).shape == zeros.reshape(4, -1).shape
    assert nn.transpose(x).shape == zeros.transpose().shape
    assert nn.transpose(x, (1, -1, 0)).shape == zeros.transpose(1, -1, 0).shape
    assert nn.broadcast_to(x[:, :1], (2, 4, 3, 6)).shape == (2, 4, 3, 6)
    assert nn.concatenate([x, x[:, :1]], axis=-2).shape == (4, 4, 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: nn.reshape(x, (5, -1)),
            r"reshape: shape \[4, 3, 6\] cannot be viewed as \[5, -1\]",
        ),
        (lambda x: nn.reshape(x, (-1, -1)), "reshape: .* cannot be viewed as"),
        (lambda x: nn.transpose(x, (0, 1)), "transpose: axes must be a permutation of the 3 axes"),
        (lambda x: nn.broadcast_to(x, (4, 6)), r"broadcast_to: \[4, 3, 6\] does not broadcast"),
        (lambda x: nn.concatenate([]), "concatenate: at least one tensor is needed"),
        (lambda x: nn.concatenate([x, x[0]]), "concatenate: shapes may differ along axis 2 only"),
        (lambda x: nn.concatenate([x], axis=3), r"concatenate: dim must be in 0\.\.2, got 3"),
        (lambda x: x @ x, r"matmul: cannot multiply .*: inner sizes \d+ and \d+ differ"),
        (lambda x: x[0, 0, 0] @ x, "matmul: expected tensors with at least one axis"),
        (lambda x: x @ nn.transpose(x[:2], (0, 2, 1)), "matmul: shapes .* do not broadcast"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_line(x, make, message):
    with pytest.raises(nn.ShapeError, match=HERE + message):
        make(x)


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 3), (3, 5)), ((2, 4, 3), (3, 5)), ((3,), (3, 5)), ((2, 4, 3), (3,)), ((3,), (3,)),
     ((2, 4, 3), (2, 3, 5)), ((4, 3), (2, 3, 5)), ((3,), (2, 3, 5)), ((7, 1, 4, 3), (2, 3, 5))],
)  # fmt: skip
def test_matmul_has_numpys_shape(left, right):
    with Tracer("float32") as tracer:
        x, y = (tracer.input(name, shape, "float32") for name, shape in (("x", left), ("y", right)))
        assert (x @ y).shape == np.matmul(np.zeros(left), np.zeros(right)).shape
