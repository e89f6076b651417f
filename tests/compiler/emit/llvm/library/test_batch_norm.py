"""Machine code of batch norm, against formulas in float64; padding, running statistics."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array, normal, wide

from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.batch_norm import BatchNorm

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")


def kernels(size):
    """Kernels of batch norm and its gradients, on named arrays."""
    a = {key: array(key, *size) for key in ("x", "grad", "out", "dx")}
    vectors = "weight", "bias", "m", "v", "mean", "rstd", "nm", "nv", "dw", "db"
    a |= {key: array(key, size[1]) for key in vectors}
    forward = BatchNorm(
        "norm",
        tuple(a[k] for k in ("x", "weight", "bias", "m", "v")),
        tuple(a[k] for k in ("out", "mean", "rstd", "nm", "nv")),
        "step.valid",
        ("0.5",),
        (0.1, 1e-5),
        Phase.FORWARD,
    )
    backward = BatchNorm(
        "norm",
        tuple(a[k] for k in ("grad", "x", "mean", "rstd", "weight")),
        tuple(a[k] for k in ("dx", "dw", "db")),
        "step.valid",
        (),
        (),
        Phase.BACKWARD,
    )
    return forward, backward


@pytest.mark.parametrize("valid", [5, 3, 1, 0])
@pytest.mark.parametrize(
    "size", [(5, 1, 1), (5, 17, 1), (5, 40, 1), (5, 3, 5), (5, 4, 49)], ids=str
)
def test_batch_norm_and_its_gradients(size, valid):
    forward, backward = kernels(size)
    values = {k: normal(*size, seed=n) for n, k in enumerate(("x", "grad"))}
    values |= {k: normal(size[1], seed=n) for n, k in enumerate(("weight", "bias", "m", "v"))}
    x, grad = wide(values["x"], values["grad"])
    found = LibraryCase(forward, values).in_all_ways(valid, 0.5)
    weight, bias, running_mean, running_variance = wide(
        *(values[key] for key in ("weight", "bias", "m", "v"))
    )
    counted = x[:valid].clone().requires_grad_()
    own_weight, own_bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    count = max(valid * size[2], 1)
    mean = counted.sum((0, 2)) / count
    variance = ((counted - mean[:, None]) ** 2).sum((0, 2)) / count
    rstd = (variance + 1e-5).rsqrt()
    out = lambda of: (of - mean[:, None]) * (rstd * own_weight)[:, None] + own_bias[:, None]  # noqa: E731
    unbiased = variance * (count / max(count - 1, 1))
    wanted = {"out": out(x), "mean": mean, "rstd": rstd}
    wanted |= {"nm": 0.5 * (0.9 * running_mean + 0.1 * mean)}
    wanted |= {"nv": 0.5 * (0.9 * running_variance + 0.1 * unbiased)}
    for key, value in wanted.items():
        scale = value.detach().abs().max().item() + 1
        np.testing.assert_allclose(found[key], value.detach(), rtol=1e-5, atol=2e-6 * scale)
    out(counted).backward(grad[:valid])
    slopes = LibraryCase(backward, values | found).in_all_ways(valid)
    dx = np.zeros(size)
    dx[:valid] = counted.grad
    for key, value in (("dx", dx), ("dw", own_weight.grad), ("db", own_bias.grad)):
        scale = np.abs(np.asarray(value)).max() + 1
        np.testing.assert_allclose(slopes[key], value, atol=1e-5 * scale, err_msg=key)


def test_sums_over_many_places_lose_no_digit():
    """Error of each sum: at most eight float32 roundings, norm-wise, from PyTorch in float64."""
    size = 64, 2, 784
    forward, backward = kernels(size)
    ones = dict.fromkeys(("weight", "bias", "m", "v"), np.ones(size[1], "float32"))
    x, grad = np.maximum(normal(*size), 0), normal(*size, seed=1)
    found = LibraryCase(forward, {"x": x} | ones).run(size[0], 1.0)
    found |= LibraryCase(backward, found | {"grad": grad}).run(size[0])
    counted, wide_grad = wide(x, grad)
    weight, bias = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    counted.requires_grad_()
    out = torch.nn.functional.batch_norm(counted, None, None, weight, bias, training=True)
    out.backward(wide_grad)
    wanted = {"out": out.detach(), "dx": counted.grad, "dw": weight.grad, "db": bias.grad}
    for key, value in wanted.items():
        off = np.linalg.norm(found[key] - value.numpy()) / np.linalg.norm(value)
        assert off < 8 * 2**-24, key
