"""Cross-entropy loops over rows, with few and many classes, against PyTorch."""

import numpy as np
import pytest
from support.kernels import bound

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS
from csrun.compiler.kernels.softmax_cross_entropy import (
    LossOperands,
    LossSum,
    NarrowBackward,
    NarrowForward,
    WideBackward,
    WideForward,
)
from csrun.compiler.lair import loop
from csrun.executable import machine_code

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the losses")
TOLERANCES = {"float32": 1e-6, "float64": 1e-14}
IGNORED = 1
FORMS = [
    "numpy",
    pytest.param(
        "llvm", marks=pytest.mark.skipif(not machine_code.is_supported(), reason="no llvmlite")
    ),
]
KINDS = {"narrow": (NarrowForward, NarrowBackward), "wide": (WideForward, WideBackward)}


def kernels(kind, logits, labels, ignore_index, smoothing=0.0, is_checked=True):
    """Losses of rows, their sum, and the gradient times 1 / 4."""
    forward, backward = KINDS[kind]
    x, y = (
        Array(name, array.shape, array.dtype.name)
        for name, array in (("logits", logits), ("labels", labels))
    )
    parts = LossOperands(x, y, ignore_index, smoothing, None, is_checked, "test", "stem")
    gradient = Array("gradient", logits.shape, logits.dtype.name)
    losses = forward("test", parts), LossSum("test", parts, LOSS, None, "1")
    return *losses, backward("test", parts, "0.25", gradient)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("rows", "columns"), [(7, 5), (6, 600), (2, 1)])
def test_losses_and_gradients_of_rows(monkeypatch, rows, columns, dtype, smoothing, kind, form):
    if (form, dtype) == ("llvm", "float64"):
        pytest.skip("exponentials of float64 are NumPy's")
    monkeypatch.setattr(loop, "TILE_BYTES", 6 * columns * np.dtype(dtype).itemsize)
    random = np.random.default_rng(rows)
    logits = (50 * random.standard_normal((rows, columns))).astype(dtype)
    labels = random.integers(0, columns, rows).astype(np.int32)
    ignored = np.arange(rows) == IGNORED
    labels[ignored], logits[ignored] = -100, np.nan
    own = kernels(kind, logits, labels, -100, smoothing)
    assert columns == 1 or own[0].loop.text.is_cut
    run, arrays = bound(own, {"logits": logits, "labels": labels}, form)
    with np.errstate(invalid="ignore"):
        run()
    leaf = torch.from_numpy(logits[~ignored]).double().requires_grad_()
    wanted = torch.from_numpy(labels[~ignored]).long()
    loss = torch.nn.functional.cross_entropy(
        leaf, wanted, reduction="sum", label_smoothing=smoothing
    )
    (slope,) = torch.autograd.grad(loss / 4, leaf)
    limit = 50 * TOLERANCES[dtype]
    np.testing.assert_allclose(arrays["loss"], [loss.item()], rtol=limit, atol=limit)
    np.testing.assert_allclose(arrays["gradient"][~ignored], slope, rtol=0, atol=limit)
    assert not arrays["gradient"][ignored].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_label_that_is_no_class_changes_nothing_of_the_gradient(kind, is_checked, form):
    logits, labels = np.zeros((3, 3), np.float32), np.array([3, 0, -1])
    own = kernels(kind, logits, labels, -100, is_checked=is_checked)
    run, arrays = bound(own, {"logits": logits, "labels": labels}, form)
    run()
    assert np.isnan(arrays["loss"][0]) == (not is_checked)
    expected = np.full((3, 3), 1 / 3)
    expected[1, 0] -= 1
    np.testing.assert_allclose(arrays["gradient"], expected / 4, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_each_row_may_be_the_logits(kind):
    """Rows are not contiguous: the label's logit must come from the same row."""
    whole, labels = np.random.default_rng(0).standard_normal((4, 9)), np.array([0, 4, 2, 3])
    x = Array("logits", (4, 9), "float64").sliced(1, 2, 7, 1)
    parts = LossOperands(x, Array("labels", (4,), "int64"), -100, 0.0, None, True, "test", "stem")
    own = KINDS[kind][0]("test", parts), LossSum("test", parts, LOSS, None, "1")
    run, arrays = bound(own, {"logits": whole, "labels": labels})
    run()
    theirs = torch.nn.functional.cross_entropy(
        torch.from_numpy(whole[:, 2:7]), torch.from_numpy(labels), reduction="sum"
    )
    np.testing.assert_allclose(arrays["loss"], [theirs.item()], rtol=1e-12)
