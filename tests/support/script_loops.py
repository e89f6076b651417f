"""Loops that compute on tensors from no loader."""

from functools import wraps

import torch
from support.torch_loops import Kit
from torch import nn

import cerebras_torch as cbtorch


class Given(nn.Module):
    """Model with a second tensor as argument."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x, other):
        return self.last(self.first(x) * other)


def seeded(loop):
    @wraps(loop)
    def run(kit):
        torch.manual_seed(3)
        return loop(kit)

    return run


def name_of(loop):
    return loop.__name__


class GivenKit(Kit):
    """Kit of a model with two arguments."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.model = self.model[0]


class Recurrent(nn.Module):
    """Recurrent model that continues from the state of the last batch."""

    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRUCell(6, 5), nn.Linear(5, 4)

    def forward(self, x, state):
        state = self.cell(x, state)
        return self.last(state), state


class ScriptKit(Kit):
    """Kit without a loader of csrun."""

    def session(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        self.model = cbtorch.module(self.model)
        return cbtorch.Session(self.model, self.optimizer, self.criterion, mode="train")

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


def each_step(kit, loss_of):
    """Train by a loss of the batch and the step's number; return the results, flat."""
    found = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss, *others = loss_of(x, y, step)
        loss.backward()
        kit.optimizer.step()
        found += [loss.item(), *(other.sum().item() for other in others)]
    return found
