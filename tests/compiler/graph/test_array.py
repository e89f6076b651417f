"""Views of a buffer, against NumPy's, and the expressions that create them in a program."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csrun.compiler.emit.local_names import expression
from csrun.compiler.graph.array import Array

SIZES = st.lists(st.integers(1, 4), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(["permute", "expand", "reshape", "part"]), st.randoms()))


def strided(array, base):
    """Return the view by its offset, shape and strides."""
    strides = [stride * base.itemsize for stride in array.strides]
    return np.lib.stride_tricks.as_strided(base.ravel()[array.offset :], array.shape, strides)


def permute(array, x, random):
    dims = random.sample(range(x.ndim), x.ndim)
    return array.permuted(dims), x.transpose(dims)


def expand(array, x, random):
    shape = tuple(random.choice([n, 2]) if n == 1 else n for n in x.shape)
    shape = (2, *shape) if random.random() < 0.3 else shape
    return array.expanded(shape), np.broadcast_to(x, shape)


def reshape(array, x, random):
    shape, left = [], x.size
    if not left:
        return array.reshaped((0,)), x.reshape(0)
    while left > 1:
        shape.append(random.choice([n for n in range(1, left + 1) if left % n == 0]))
        left //= shape[-1]
    viewed = array.reshaped(tuple(shape))
    assert (viewed is not None) == np.shares_memory(x.reshape(shape), x)  # NumPy copies as it must
    return (array, x) if viewed is None else (viewed, x.reshape(shape))


def part(array, x, random):
    dim = random.randrange(x.ndim) if x.ndim else None
    if dim is None:
        return array, x
    start, end, step = random.randint(0, x.shape[dim]), x.shape[dim], random.choice([1, 1, 2])
    if x.shape[dim] and random.random() < 0.5:
        at = min(start, x.shape[dim] - 1)
        return array.selected(dim, at), np.moveaxis(x, dim, 0)[at, ...]
    cut = (*[slice(None)] * dim, slice(start, end, step))
    return array.sliced(dim, start, end, step), x[cut]


CHANGES = {"permute": permute, "expand": expand, "reshape": reshape, "part": part}


@settings(max_examples=300)
@given(shape=SIZES, steps=STEPS)
def test_views_of_views_are_numpys(shape, steps):
    base = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    array, x = Array("base", tuple(shape), "int64"), base
    for name, random in steps:
        if x.size < 1000:
            array, x = CHANGES[name](array, x, random)
        np.testing.assert_array_equal(strided(array, base), x)
        text = expression(array, "base", tuple(shape))
        made = eval(text, {"base": base, "np": np})
        np.testing.assert_array_equal(made, x, err_msg=text)
        assert not x.size or np.shares_memory(made, base), text
        assert not array.is_contiguous or x.flags.c_contiguous or array.repeats


X = Array("x", (2, 3, 12), "float32")
HEADS = "x.reshape((2, 3, 4, 3)).transpose((0, 2, 1, 3))"


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (X, "x"),
        (X.reshaped((6, 12)), "x.reshape((6, 12))"),
        (X.reshaped((6, 12)).permuted((1, 0)), "x.reshape((6, 12)).T"),
        (X.reshaped((2, 3, 4, 3)).permuted((0, 2, 1, 3)), HEADS),
        (Array("x", (2, 3, 4), "float32", 4, (36, 12, 1)), "x[:, :, 4:8]"),
        (Array("x", (2, 12), "float32", 12, (36, 1)), "x.reshape((2, 36))[:, 12:24]"),
        (Array("x", (2, 3), "float32", 5, (36, 12)), "x[:, :, 5]"),
    ],
)  # fmt: skip
def test_the_text_of_a_view_reads_well(array, text):
    assert expression(array, "x", X.shape) == text
