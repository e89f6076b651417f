"""Edits of gradients by a loop between backward() and step()."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # noqa: E402

from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.cirh import print_module  # noqa: E402
from csrun.cirh.algorithms import SgdAttr  # noqa: E402

RATE = 0.5
STREAMING = ExecutionMode.WEIGHT_STREAMING


def scaled(model):
    for parameter in model.parameters():
        parameter.grad.mul_(0.25)
        parameter.grad = parameter.grad / 2 + 0.01 * parameter.detach()


def cut(model):
    clip_grad_value_(model.parameters(), 0.05)


def clipped(model):
    clip_grad_norm_(model.parameters(), 0.3)


def clipped_by_the_largest(model):
    clip_grad_norm_(model.parameters(), 0.01, norm_type=float("inf"))


def clipped_in_part(model):
    clip_grad_norm_(model[2].parameters(), 0.02)


def clipped_apart(model):
    for layer in (model[0], model[2]):
        clip_grad_norm_(layer.parameters(), 0.1)


EDITS = (scaled, cut, clipped, clipped_by_the_largest, clipped_in_part, clipped_apart)


def step_with(edit):
    def step(model, batch):
        model.zero_grad()
        loss = f.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        edit(model)
        return loss

    return step


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_weights_after_edited_gradients_are_pytorchs(tmp_path, edit):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batch = torch.randn(8, 6).double(), torch.arange(8) % 3
    step = step_with(edit)
    beside = Beside(model, batch, step, tmp_path, STREAMING, SgdAttr.of(RATE))
    machine = beside.machine()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    _, interpreted = beside.interpreted()
    for number in range(3):
        beside.ours(machine)
        step(model, batch)
        for name, parameter in model.named_parameters():
            assert number or torch.equal(interpreted[name], parameter.grad)
        optimizer.step()
    for name, parameter in model.named_parameters():
        ours = machine.state[name.replace(".", "/")]
        np.testing.assert_allclose(ours, parameter.detach(), rtol=1e-11, atol=1e-13)
    assert (edit is clipped) == ("clip_norm" in print_module(beside.module))
