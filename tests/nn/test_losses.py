"""Losses: values and gradients of a step against PyTorch, and mismatched shapes."""

import numpy as np
import pytest
from support.pages import CHECKOUT, blocks, section
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.nn.errors import ShapeError, TraceError
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the losses")
functional = torch.nn.functional
B, N = 6, 3
random = np.random.default_rng(5)
X = (3 * random.normal(size=(B, N))).astype(np.float32)
Y = random.integers(0, 2, size=(B, N)).astype(np.float32)
Y[0, 0], Y[1, 1] = 0.25, X[1, 1]  # a probability; an error of 0
Y[:, 2] = Y[:, 2] > 0.5

CASES = {
    "mean_squared_error": (nn.mean_squared_error, functional.mse_loss),
    "mean_absolute_error": (nn.mean_absolute_error, functional.l1_loss),
    "huber": (nn.huber, functional.huber_loss),
    "huber of 0.3": (
        lambda x, y: nn.huber(x, y, delta=0.3),
        lambda x, y: functional.huber_loss(x, y, delta=0.3),
    ),
    "binary_cross_entropy": (
        nn.binary_cross_entropy,
        functional.binary_cross_entropy_with_logits,
    ),
    "binary_cross_entropy, weighted": (
        lambda x, y: nn.binary_cross_entropy(x, y, pos_weight=2.5),
        lambda x, y: functional.binary_cross_entropy_with_logits(
            x, y, pos_weight=torch.tensor(2.5)
        ),
    ),
}


@pytest.mark.parametrize("scale", [1.0, 60.0])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_pytorch(tmp_path, name, scale):
    """The gradient is that of a bias added to the predictions."""
    ours, theirs = CASES[name]
    x = X * np.float32(scale)
    with Tracer("float32") as tracer:
        features = tracer.input("features", (B, N), "float32")
        labels = tracer.input("labels", (B, N), "float32")
        loss = ours(nn.Bias(name="b")(features), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(1.0).minimize(loss), [])
    start = {"b/bias": np.zeros(N, np.float32)}
    machine = Machine(compile_model(module, tmp_path, options_of()).executable, start)
    found, gradients = machine.train((x, Y))
    bias = torch.zeros(N, requires_grad=True)
    expected = theirs(torch.from_numpy(x) + bias, torch.from_numpy(Y))
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(gradients["b/bias"], bias.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_class_weights_as_documented_are_those_of_pytorch(tmp_path):
    """The function in docs/nn.md; the last feature of each sample is its weight."""
    given = {"nn": nn}
    text = section(CHECKOUT / "docs" / "nn.md", "Losses")
    exec(next(block for block in blocks(text) if "weighted_cross_entropy" in block), given)
    classes, weights = np.arange(B, dtype=np.int32) % N, np.array([0.5, 1, 3], np.float32)
    with Tracer("float32") as tracer:
        features = tracer.input("features", (B, N + 1), "float32")
        labels = tracer.input("labels", (B,), "int32")
        logits = nn.Bias(name="b")(features[:, :N])
        loss = given["weighted_cross_entropy"](logits, labels, features[:, N])
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(1.0).minimize(loss), [])
    start = {"b/bias": np.zeros(N, np.float32)}
    machine = Machine(compile_model(module, tmp_path, options_of()).executable, start)
    batch = np.concatenate([X, weights[classes][:, None]], axis=1)
    found, gradients = machine.train((batch, classes))
    bias = torch.zeros(N, requires_grad=True)
    losses = functional.cross_entropy(
        torch.from_numpy(X) + bias,
        torch.from_numpy(classes).long(),
        torch.from_numpy(weights),
        reduction="none",
    )
    losses.mean().backward()
    assert found == pytest.approx(losses.mean().item(), rel=1e-5)
    np.testing.assert_allclose(gradients["b/bias"], bias.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.fixture
def tracer():
    with Tracer() as one:
        yield one


@pytest.mark.parametrize(
    "loss", [nn.mean_squared_error, nn.mean_absolute_error, nn.huber, nn.binary_cross_entropy]
)
def test_a_column_and_a_vector_are_refused_with_the_remedy(tracer, loss):
    column = nn.Dense(1)(tracer.input("x", (4, 6), "float32"))
    labels = tracer.input("labels", (4,), "float32")
    with pytest.raises(ShapeError, match=r"got \[4, 1\] and \[4\]: predictions\[..., 0\]"):
        loss(column, labels)
    assert loss(column[..., 0], labels).shape == ()
    assert loss(column[:, 0], labels.astype("int32")).shape == ()


def test_logits_and_labels_that_change_places_are_refused(tracer):
    labels = tracer.input("labels", (4,), "int32")
    logits = tracer.input("x", (4,), "float32")
    with pytest.raises(TraceError, match="binary_cross_entropy: expected floats, got int32"):
        nn.binary_cross_entropy(labels, logits)
