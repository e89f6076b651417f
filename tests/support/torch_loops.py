"""A small script on csrun and in plain PyTorch: a model, an optimizer, two loaders."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import cerebras_torch as cbtorch


class Kit:
    """Model, optimizer and loaders of a loop; `train_once` is the usual loop."""

    def __init__(self, *layers, optimizer=lambda p: optim.SGD(p, 0.05, momentum=0.9)):
        torch.manual_seed(3)
        layers = layers or (nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
        self.model = nn.Sequential(*copy.deepcopy(layers)).double()
        self.optimizer = optimizer(self.model.parameters())
        x, y = torch.randn(48, 6, dtype=torch.float64), torch.randint(4, (48,))
        self.train = DataLoader(TensorDataset(x, y), 8)
        self.val = DataLoader(TensorDataset(x[:20].clone(), y[:20].clone()), 4)
        self.criterion = nn.CrossEntropyLoss()

    def session(self, folder, **options):
        """Session on csrun."""
        cbtorch.initialize(model_dir=folder, **options)
        self.model = cbtorch.module(self.model)
        self.train, self.val = cbtorch.dataloader(self.train), cbtorch.dataloader(self.val)
        return cbtorch.Session(self.model, self.optimizer, self.criterion, mode="train")

    def train_once(self, edit=lambda step: None, zero=True):
        """Train a pass, calling `edit` between backward() and step(); return detached losses."""
        losses = []
        for step, (x, y) in enumerate(self.train):
            if zero is True or (zero and zero(step)):
                self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            edit(step)
            self.optimizer.step()
            losses.append(loss.detach())
        return losses

    def update(self, loss):
        """Take a step by a loss, which is returned without its graph."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @property
    def gradients(self):
        """Gradients of the parameters, in order."""
        return [p.grad for p in self.model.parameters()]


def beside(loop, folder, *layers, settings=None, kit=Kit, rel=1e-10, **options):
    """Assert that a loop has equal results and weights on csrun and in plain PyTorch.

    settings: of csrun's run; kit: class of the loop's parts; rel: tolerance of the weights
    """
    ours, theirs = kit(*layers, **options), kit(*layers, **options)
    theirs.model.load_state_dict(ours.model.state_dict())
    with ours.session(folder, **(settings or {})):
        found = [float(number) for number in loop(ours)]
    expected = [float(number) for number in loop(theirs)]
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-6,
        atol=1e-7,
    )
    assert expected, "the loop gives numbers"
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(
            value, theirs.model.state_dict()[name], rtol=rel, atol=rel / 100, msg=name
        )


def marked_line(function: Callable[..., Any]) -> int:
    """Return the number of the line in a function that ends with `# here`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if line.rstrip().endswith("# here"))
