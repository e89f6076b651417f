"""CTC loss in float32, in log space, against PyTorch: infinite values and refused inputs, too."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the loss")

from csrun.base.errors import CsrunError  # noqa: E402
from csrun.kernels import ctc  # noqa: E402

TIMES, SAMPLES, CLASSES, LONGEST = 60, 6, 11, 12
TARGETS = np.random.default_rng(1).integers(1, 4, (SAMPLES, LONGEST))  # labels repeat
INPUTS, LABELS = np.array([60, 50, 37, 30, 24, 1]), np.array([12, 0, 1, 9, 12, 1])


def drawn(dtype="float32"):
    x = 3 * np.random.default_rng(0).standard_normal((TIMES, SAMPLES, CLASSES))
    return torch.from_numpy(x.astype(dtype)).log_softmax(2)


def ours(log_probs, inputs=INPUTS, labels=LABELS, targets=TARGETS, leaves_out=False):
    """Losses, and their gradients for an incoming gradient of 1."""
    x = log_probs.numpy()
    loss, grad = np.empty(SAMPLES, x.dtype), np.empty_like(x)
    kept = np.empty((TIMES + 1, SAMPLES, 2 * LONGEST + 1), x.dtype)
    ctc.ctc_loss(x, targets, inputs, labels, loss, 0, leaves_out, "layer a")
    slope = np.ones_like(loss)
    ctc.ctc_loss_backward(slope, x, targets, inputs, labels, grad, kept, 0, leaves_out, "layer a")
    return torch.from_numpy(loss), torch.from_numpy(grad)


def theirs(log_probs, inputs=INPUTS, labels=LABELS, leaves_out=False):
    x = log_probs.clone().requires_grad_()
    lengths = torch.from_numpy(inputs), torch.from_numpy(labels)
    options = {"reduction": "none", "zero_infinity": leaves_out}
    loss = torch.nn.functional.ctc_loss(x, torch.from_numpy(TARGETS), *lengths, **options)
    loss.sum().backward()
    return loss.detach(), x.grad


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [("float32", 1e-5, 2e-5), ("float64", 0, 1e-11)]
)
def test_losses_and_gradients_are_pytorchs(dtype, rtol, atol):
    x = drawn(dtype)
    for own, expected in zip(ours(x), theirs(x), strict=True):
        torch.testing.assert_close(own, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_target_that_does_not_fit_has_no_finite_loss(leaves_out):
    inputs = np.array([11, 50, 0, 30, 24, 1])
    x = drawn("float64")
    loss, grad = ours(x, inputs, leaves_out=leaves_out)
    assert loss[0] == (0 if leaves_out else np.inf)
    expected = theirs(x, inputs, leaves_out=leaves_out)
    torch.testing.assert_close((loss, grad), expected, equal_nan=True, rtol=0, atol=1e-11)


def test_a_class_without_probability_has_the_gradient_nan():
    x = drawn("float64")
    x[:, :, 7] = -torch.inf
    torch.testing.assert_close(ours(x), theirs(x), equal_nan=True, rtol=0, atol=1e-11)


def test_lengths_and_labels_out_of_range_are_refused():
    with pytest.raises(
        CsrunError, match=r"layer a: input_lengths of a ctc_loss must be in 0..60, got 61"
    ):
        ours(drawn(), INPUTS + 1)
    with pytest.raises(
        CsrunError, match=r"layer a: target_lengths of a ctc_loss must be in 0..12, got -1"
    ):
        ours(drawn(), labels=LABELS - 1)
    with pytest.raises(
        CsrunError, match=r"layer a: targets of a ctc_loss must be in 0..10, got 12"
    ):
        ours(drawn(), targets=TARGETS + 10)
