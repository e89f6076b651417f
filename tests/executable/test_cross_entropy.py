"""Cross entropy row by row over given arrays, against PyTorch's."""

import numpy as np
import pytest

from csrun.executable.cross_entropy import row_gradients, row_losses

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the losses")
TOLERANCES = {"float32": 1e-6, "float64": 1e-14}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("rows", "columns", "tile"), [(7, 5, 3), (6, 600, 2), (1, 1, 1)])
def test_losses_and_gradients_of_rows(rows, columns, tile, dtype, smoothing):
    random = np.random.default_rng(rows)
    logits = (50 * random.standard_normal((rows, columns))).astype(dtype)
    labels = random.integers(0, columns, rows).astype(np.int32)
    ignored = np.arange(rows) == 1
    logits[ignored] = np.nan
    losses, sums = np.empty(rows, dtype), np.empty(rows, dtype)
    gradient = np.full_like(logits, np.nan)
    own = np.arange(rows), np.empty(rows, np.int64)
    row_losses(logits, labels, losses, sums, np.empty((tile, columns), dtype), *own, smoothing)
    row_gradients(logits, labels, sums, ignored, 0.25, gradient, *own, tile, smoothing)
    leaf = torch.from_numpy(logits[~ignored]).double().requires_grad_()
    wanted = torch.from_numpy(labels[~ignored]).long()
    loss = torch.nn.functional.cross_entropy(
        leaf, wanted, reduction="none", label_smoothing=smoothing
    )
    (slope,) = torch.autograd.grad(loss.sum() / 4, leaf)
    limit = 50 * TOLERANCES[dtype]
    np.testing.assert_allclose(losses[~ignored], loss.detach(), rtol=limit, atol=limit)
    np.testing.assert_allclose(gradient[~ignored], slope, rtol=0, atol=limit)
    assert not gradient[ignored].any()


def test_a_label_that_is_no_class_reads_and_writes_nothing_else():
    logits, sums = np.zeros((2, 3)), np.empty(2)
    losses, gradient = np.empty(2), np.empty((2, 3))
    labels = np.array([3, -1])
    own = np.arange(2), np.empty(2, np.int64)
    row_losses(logits, labels, losses, sums, np.empty((2, 3)), *own, 0.0)
    row_gradients(logits, labels, sums, np.zeros(2, bool), 1.0, gradient, *own, 2, 0.0)
    np.testing.assert_allclose(losses, np.log([3, 3]))
    np.testing.assert_allclose(gradient, np.full((2, 3), 1 / 3))
