"""Optimizers of torch.optim in a Session against PyTorch: each option of PyTorch's own tests."""

from contextlib import suppress
from copy import deepcopy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.samples.database import optimizers  # noqa: E402
from support.torch_loops import Kit  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402

STEPS = 12  # RAdam's first five are not rectified
KINDS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "RAdam", "Adadelta")
MORE = {
    "SGD": [{"momentum": 0.8, "dampening": 0.3, "maximize": True, "weight_decay": 0.1}],
    "Adam": [{"amsgrad": True, "maximize": True, "betas": (0.6, 0.7)}],
    "NAdam": [{"betas": (0.6, 0.7), "decoupled_weight_decay": True, "momentum_decay": 0.0}],
    "RAdam": [{"betas": (0.6, 0.8), "decoupled_weight_decay": True}],
}
# PyTorch keeps NAdam's product of momenta in float32.
TOLERANCE = {"NAdam": 1e-6}


class Layers(nn.Module):
    """One layer for each set of options; the output is the sum of all."""

    def __init__(self, number):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(number))

    def forward(self, x):
        return sum(torch.tanh(layer(x)) for layer in self.layers)


def of_seed(layers):
    torch.manual_seed(7)
    model = Layers(layers).double()
    x, y = torch.randn(4 * STEPS, 3).double(), torch.randn(4 * STEPS, 2).double()
    return model, DataLoader(TensorDataset(x, y), 4)


def loop(model, optimizer, loader, scheduler=None):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def beside(tmp_path, layers, make, schedule=lambda optimizer: None):
    """Model and optimizer after the loop in PyTorch, and after a Session's."""
    model, loader = of_seed(layers)
    ours = deepcopy(model)
    optimizer, our_optimizer = make(model), make(ours)
    loop(model, optimizer, loader, schedule(optimizer))
    cbtorch.initialize(model_dir=tmp_path)
    ours, loader = cbtorch.module(ours), cbtorch.dataloader(loader)
    with cbtorch.Session(ours, our_optimizer, mode="train"):
        loop(ours, our_optimizer, loader, schedule(our_optimizer))
    return (model, optimizer), (ours, our_optimizer)


def require_equal(theirs, ours, tolerance=1e-9):
    for expected, found in zip(theirs[0].parameters(), ours[0].parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    expected, found = (optimizer.state_dict() for _, optimizer in (theirs, ours))
    assert found["param_groups"] == expected["param_groups"]
    for number, state in expected["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(
                found["state"][number].get(name), value, rtol=tolerance, atol=1e-9, msg=name
            )


@pytest.mark.parametrize("kind", KINDS)
def test_all_options_of_pytorchs_tests_are_pytorchs(tmp_path, kind):
    inputs = optimizers()[kind].optim_inputs_func(device="cpu")
    options = [*(each.kwargs for each in inputs), *MORE.get(kind, [])]

    def make(model):
        layers = zip(model.layers, options, strict=True)
        return getattr(optim, kind)([{"params": m.parameters(), **o} for m, o in layers])

    theirs, ours = beside(tmp_path, len(options), make)
    require_equal(theirs, ours, TOLERANCE.get(kind, 1e-9))


class KilledError(Exception):
    """Raised to end the script."""


def test_a_killed_loop_resumes_with_all_slots(tmp_path):
    def kill(step):
        if step == 4:
            raise KilledError

    first, ours, theirs = (
        Kit(optimizer=lambda p: optim.AdamW(p, 0.05, amsgrad=True)) for _ in range(3)
    )
    with suppress(KilledError), first.session(tmp_path, save_checkpoints_steps=2):
        first.train_once(kill)
    with ours.session(tmp_path):
        ours.train_once()
    theirs.train_once()
    require_equal((theirs.model, theirs.optimizer), (ours.model, ours.optimizer))


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 6)


def cyclic(optimizer):
    return lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=4)


CYCLES = {
    "sgd": (lambda p: optim.SGD(p, 0.1, 0.9, nesterov=True), one_cycle),
    "adamw": (lambda p: optim.AdamW(p, 0.1, amsgrad=True), one_cycle),
    "adamax": (lambda p: optim.Adamax(p, 0.1), cyclic),
    "rmsprop": (lambda p: optim.RMSprop(p, 0.1, momentum=0.9), cyclic),
}


@pytest.mark.parametrize("name", CYCLES)
def test_a_momentum_that_is_cycled_is_pytorchs(tmp_path, name):
    make, schedule = CYCLES[name]
    theirs, ours = beside(tmp_path, 2, lambda model: make(model.parameters()), schedule)
    require_equal(theirs, ours)
