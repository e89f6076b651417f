"""Edge cases of convolution, pooling and batch norm: no samples, one, partial tiles."""

import numpy as np
import pytest

from csrun.kernels import batch_norm, convolution, pooling, windows

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")
functional = torch.nn.functional
random = np.random.default_rng(3)
TAPS = windows.taps((5, 4), (5, 4), (3, 3), (1, 1), (1, 1), (1, 1))
HALVES = windows.taps((5, 4), (2, 2), (2, 2), (2, 2), (0, 0), (1, 1))


@pytest.mark.parametrize("samples", [0, 1, 5])
def test_a_convolution_of_any_number_of_samples(samples):
    x, grad = (
        random.standard_normal((samples, 2, 5, 4)),
        random.standard_normal((samples, 1, 3, 20)),
    )
    weight, columns = random.standard_normal((1, 3, 18)), np.full((2, 2, 3, 3, 5, 4), np.nan)
    out, x_gradient, weight_gradient = np.empty_like(grad), np.empty_like(x), np.ones((3, 2, 3, 3))
    convolution.convolve(x, weight, None, out, columns, TAPS)
    convolution.backward_input(grad, weight, x_gradient, columns, TAPS)
    own = (grad, x, weight_gradient, np.full_like(columns, np.nan), np.empty_like(weight), TAPS)
    convolution.backward_weight(*own, adds=True)
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (x, weight.reshape(3, 2, 3, 3))]
    expected = functional.conv2d(*leaves, padding=1)
    slopes = torch.autograd.grad(expected, leaves, torch.from_numpy(grad.reshape(expected.shape)))
    np.testing.assert_allclose(out.reshape(expected.shape), expected.detach(), atol=1e-13)
    np.testing.assert_allclose(x_gradient, slopes[0], atol=1e-13)
    np.testing.assert_allclose(weight_gradient, slopes[1] + 1, atol=1e-13)


@pytest.mark.parametrize("planes", [0, 1, 5])
def test_a_pooling_of_any_number_of_planes(planes):
    x, grad = random.standard_normal((planes, 5, 4)), random.standard_normal((planes, 2, 2))
    out, offsets, slope = np.empty_like(grad), np.empty(grad.shape, "i4"), np.empty_like(x)
    seen, numbers, chosen = (np.empty((2, 2, 2), kind) for kind in ("d", "i4", "?"))
    first = pooling.first_inside((2, 2), HALVES, 2)
    pooling.max_pool(x, out, offsets, (seen, numbers, chosen), first, HALVES, 2)
    pooling.max_pool_backward(grad, offsets, slope, (seen, np.empty((2, 2, 2), "i8")), HALVES, 2)
    leaf = torch.from_numpy(x).requires_grad_()
    expected = functional.max_pool2d(leaf[:, None], 2)[:, 0]
    np.testing.assert_array_equal(out, expected.detach())
    (their,) = torch.autograd.grad(expected, leaf, torch.from_numpy(grad))
    np.testing.assert_array_equal(slope, their)


def test_a_gradient_that_is_not_finite_goes_where_it_belongs_alone():
    grad, offsets = np.array([[[np.inf, np.nan]]]), np.array([[[1, 2]]], "i4")
    out, scratch = np.empty((1, 2, 4)), (np.empty((1, 1, 2)), np.empty((1, 1, 2), "i8"))
    taps = windows.taps((2, 4), (1, 2), (2, 2), (2, 2), (0, 0), (1, 1))
    pooling.max_pool_backward(grad, offsets, out, scratch, taps, 2)
    np.testing.assert_array_equal(out, [[[0, np.inf, 0, 0], [0, 0, np.nan, 0]]])


@pytest.mark.parametrize("places", [1, 6])
@pytest.mark.parametrize(("rows", "end", "tile"), [(7, 7, 3), (7, 4, 3), (2, 2, 5), (6, 2, 1)])
def test_a_batch_norm_and_its_gradients(rows, end, tile, places):
    x, grad = random.standard_normal((2, rows, 3, places)) + 2
    weight, bias, old_mean, mean, rstd, next_mean, next_var = random.standard_normal((7, 3))
    old_var, ones, sums = np.abs(old_mean), np.ones(places), np.empty((tile, 3))
    out, slopes = np.empty_like(x), (np.empty_like(x), np.empty(3), np.empty(3))
    three = tuple(np.empty((3, 3)))
    following = (next_mean, next_var)
    results = batch_norm.BatchNormResults(
        out, mean, rstd, *following, ones, sums, three[:2], momentum=0.2, eps=1e-3
    )
    batch_norm.batch_norm(x, weight, bias, (old_mean, old_var), results, end, 1.0)
    gradients = batch_norm.BatchNormGradients(*slopes, ones, sums, three)
    batch_norm.batch_norm_backward(grad, x, mean, rstd, weight, gradients, end)
    running = [torch.from_numpy(a.copy()) for a in (old_mean, old_var)]
    leaves = [torch.from_numpy(a).requires_grad_() for a in (x[:end].copy(), weight, bias)]
    expected = functional.batch_norm(leaves[0], *running, *leaves[1:], True, 0.2, 1e-3)
    expected.backward(torch.from_numpy(grad[:end]))
    np.testing.assert_allclose(out[:end], expected.detach(), atol=1e-12)
    assert np.isfinite(out).all()
    assert not slopes[0][end:].any()
    for own, leaf in zip((slopes[0][:end], *slopes[1:]), leaves, strict=True):
        np.testing.assert_allclose(own, leaf.grad, atol=1e-11)
    np.testing.assert_allclose(following, torch.stack(running), atol=1e-13)
