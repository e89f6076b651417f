"""Values that are read after their step."""

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn


@refused_loop("an output first read after its step")
def output_read_late(kit):
    for step, (x, y) in enumerate(kit.train):
        out = kit.model(x)
        kit.update(kit.criterion(out, y)).item()
        if step > 3:
            out.sum().item()  # here


class Keeps(nn.Linear):
    """Keeps a value in an attribute."""

    kept = torch.zeros(4)  # in a job's other tasks, which do not run the block

    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept.tanh()


KEPT = "a value kept by a hook or an attribute in forward, read after its step"


@refused(KEPT)
def kept_value_read_after_the_block(folder):
    kit = Kit(Keeps())
    with kit.session(folder):
        kit.train_once()
    kit.model[0].kept.detach().mean().item()  # here


@refused_loop(KEPT, Keeps())
def kept_value_read_late(kit):
    for x, y in kit.train:
        kit.update(kit.criterion(kit.model(x), y))
        kit.model[0].kept.detach().mean().item()  # here


class ReturnsWeights(nn.Linear):
    """Returns a view of its weight, too."""

    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x):
        return super().forward(x), self.weight.view(-1, 3)


@refused_loop("a view of a weight, read after the step", ReturnsWeights())
def view_of_a_weight_read_late(kit):
    for step, (x, y) in enumerate(kit.train):
        out, view = kit.model(x)
        kit.update(kit.criterion(out, y))
        if step > 3:
            view.sum().item()  # here
