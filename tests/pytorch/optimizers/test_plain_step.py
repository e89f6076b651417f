"""First step of an optimizer from its state in the store, against PyTorch's."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn, optim  # noqa: E402

from csrun.pytorch.optimizers.optimization import Optimization  # noqa: E402
from csrun.pytorch.optimizers.plain_step import ParameterState, plain_step  # noqa: E402


def test_the_first_step_begins_with_the_sum_that_adagrad_is_given():
    torch.manual_seed(1)
    model, gradient = nn.Linear(3, 2, bias=False), torch.randn(2, 3)
    optimizer = optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.5)
    weights, slots = model.weight.detach().clone(), {"square_sum": torch.full((2, 3), 0.5)}
    before = ParameterState(weights, gradient, slots, 0)
    found = plain_step(Optimization(optimizer, model), "weight", before, [0.1, 0.0, 0.0])
    model.weight.grad = gradient
    optimizer.step()
    assert torch.equal(found["weights"], model.weight.detach())
    assert torch.equal(found["square_sum"], optimizer.state[model.weight]["sum"])
