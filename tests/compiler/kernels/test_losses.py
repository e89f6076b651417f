"""Cross entropy with label smoothing, and several losses of the same logits, against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the losses")
numbers = np.random.default_rng(23)
ROWS, FEATURES = 6, 4


def trained(folder, classes, loss_of, ignored=0):
    """Loss and kernel gradient of a linear model's step, in csrun and in PyTorch."""
    with Tracer("float64") as tracer:
        x = tracer.input("features", (ROWS, FEATURES), "float64")
        labels = tracer.input("labels", (ROWS,), "int32")
        logits = nn.Dense(classes, use_bias=False)(x)
        loss, outputs = loss_of(nn, logits, labels, nn.softmax_cross_entropy)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), outputs)
    features = numbers.standard_normal((ROWS, FEATURES))
    kernel = numbers.standard_normal((FEATURES, classes))
    labels = numbers.integers(0, classes, ROWS).astype(np.int32)
    labels[ROWS - ignored :] = -100
    machine = Machine(compile_model(module, folder, options_of()).executable, {})
    machine.state["dense/kernel"][...] = kernel
    found, gradients = machine.train((features, labels))
    leaf = torch.from_numpy(kernel).requires_grad_()
    logits, labels = torch.from_numpy(features) @ leaf, torch.from_numpy(labels).long()
    peer = loss_of(torch, logits, labels, torch.nn.functional.cross_entropy)[0]
    peer.backward()
    np.testing.assert_allclose(found, peer.item(), rtol=1e-12)
    np.testing.assert_allclose(gradients["dense/kernel"], leaf.grad, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("classes", [3, 200])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing(tmp_path, classes, smoothing):
    def loss_of(m, logits, labels, cross_entropy):
        return cross_entropy(logits, labels, label_smoothing=smoothing), []

    trained(tmp_path, classes, loss_of, ignored=2)


@pytest.mark.parametrize("classes", [3, 200])
def test_others_may_read_the_logarithms(tmp_path, classes):
    def loss_of(m, logits, labels, cross_entropy):
        logarithms = m.log_softmax(logits, -1)
        own = 0.1 * m.mean(m.sum(logarithms * logarithms, -1), 0)
        return cross_entropy(logits, labels) + own, [("logarithms", logarithms)]

    trained(tmp_path, classes, loss_of)


@pytest.mark.parametrize("classes", [3, 200])
def test_two_losses_of_the_same_logits(tmp_path, classes):
    def loss_of(m, logits, labels, cross_entropy):
        first = cross_entropy(logits, labels, label_smoothing=0.2)
        return first + 0.5 * cross_entropy(logits, labels), [("first", first)]

    trained(tmp_path, classes, loss_of)
