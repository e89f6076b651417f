"""Tensors compared by their bits."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from csrun.pytorch.record.equal_bits import have_equal_bits  # noqa: E402

NAN = float("nan")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128])
def test_floats_are_compared_by_their_bits(dtype, count):
    """A program that divides by zeros distinguishes -0.0 from 0.0."""
    one = torch.zeros(count, dtype=dtype, requires_grad=True)
    assert have_equal_bits(one, torch.zeros(count, dtype=dtype))
    assert not have_equal_bits(one, torch.full((count,), -0.0, dtype=dtype))
    assert have_equal_bits(*torch.full((2, count), NAN, dtype=dtype))
    assert not have_equal_bits(one, torch.full((count,), NAN, dtype=dtype))


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_integers(dtype, count):
    one = torch.ones(count, dtype=dtype)
    assert have_equal_bits(one, torch.ones(count, dtype=dtype))
    assert not have_equal_bits(one, torch.zeros(count, dtype=dtype))
    assert not have_equal_bits(one, torch.ones(count + 1, dtype=dtype))


def test_views_are_compared_as_what_they_show():
    one = torch.arange(6.0).reshape(2, 3)
    assert have_equal_bits(one.t(), one.t().contiguous())
    assert have_equal_bits(torch.zeros(3).expand(4, 3), torch.zeros(4, 3))
    imaginary = torch.tensor([1 + 2j]).conj().imag
    assert have_equal_bits(imaginary, torch.tensor([-2.0]))
    assert have_equal_bits(one.to_sparse(), one.to_sparse())
