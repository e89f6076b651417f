"""Tiled norms on preallocated arrays, against PyTorch."""

import numpy as np
import pytest

from csrun.kernels import normalization

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the norms")
functional = torch.nn.functional
EPS = 1e-3
TOLERANCES = {"float32": 3e-6, "float64": 1e-13}


def normal(*shape, dtype):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def theirs(function, grad, *operands):
    leaves = [torch.from_numpy(x).double().requires_grad_() for x in operands]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.from_numpy(grad).double())]


def check(ours, expected, dtype):
    for own, their in zip(ours, expected, strict=True):
        scale = max(1, np.abs(their.numpy()).max(initial=0))
        np.testing.assert_allclose(own, their, rtol=0, atol=scale * TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("rows", "size", "tile"), [(7, 5, 3), (6, 5, 3), (1, 1, 1), (4, 9, 9)])
def test_layer_norm_and_its_gradients(rows, size, tile, dtype):
    x, grad = (normal(rows, size, dtype=dtype) + n for n in (3, 0))
    weight, bias = normal(size, dtype=dtype), normal(size + 1, dtype=dtype)[1:]
    out, mean, rstd = np.empty_like(x), np.empty(rows, dtype), np.empty(rows, dtype)
    ones, scratch = np.ones(size, dtype), np.empty((tile, size), dtype)
    results = normalization.LayerNormResults(out, mean, rstd, ones, scratch)
    normalization.layer_norm(x, weight, bias, results, EPS)
    slopes = [np.empty_like(a) for a in (x, weight, bias)]
    gradients = normalization.LayerNormGradients(
        *slopes,
        np.ones(tile, dtype),
        (scratch, np.empty_like(scratch)),
        (np.empty(tile, dtype), np.empty(tile, dtype)),
        np.empty(size, dtype),
    )
    normalization.layer_norm_backward(grad, x, mean, rstd, weight, gradients)
    expected = theirs(
        lambda x, w, b: functional.layer_norm(x, (size,), w, b, EPS), grad, x, weight, bias
    )
    check([out, *slopes], expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("rows", "size", "tile"), [(7, 5, 3), (6, 5, 3), (1, 1, 1), (4, 9, 9)])
def test_rms_norm_and_its_gradients(rows, size, tile, dtype):
    x, grad = (normal(rows, size, dtype=dtype) + n for n in (1, 0))
    weight = normal(size, dtype=dtype)
    out, rrms, scratch = np.empty_like(x), np.empty(rows, dtype), np.empty((tile, size), dtype)
    normalization.rms_norm(x, weight, normalization.RmsNormResults(out, rrms, scratch), EPS)
    slopes = [np.empty_like(a) for a in (x, weight)]
    gradients = normalization.RmsNormGradients(
        *slopes,
        (scratch, np.empty_like(scratch)),
        np.empty(tile, dtype),
        np.empty(size, dtype),
    )
    normalization.rms_norm_backward(grad, x, rrms, weight, gradients)
    expected = theirs(lambda x, w: functional.rms_norm(x, (size,), w, EPS), grad, x, weight)
    check([out, *slopes], expected, dtype)
