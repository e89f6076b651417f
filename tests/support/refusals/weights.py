"""Writes into weights, weights that are gone, and models that are built without memory."""

import warnings

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn

import cerebras_torch as cbtorch


@refused_loop("a write into a weight within a step")
def written_within_a_step(kit):
    for step, (x, y) in enumerate(kit.train):
        loss = kit.criterion(kit.model(x), y)
        if step == 4:
            with torch.no_grad():
                kit.model[0].bias.clamp_(-1, 1)  # here
        kit.update(loss)


REPLACED = "a new `Parameter` in the block, `load_state_dict(assign=True)`"


def train_on(kit):
    """Train for more steps than there are between two checks of all tensors."""
    for _ in range(3):
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x), y))


@refused_loop(REPLACED)
def new_parameter(kit):
    kit.train_once()
    kit.model[0].bias = nn.Parameter(torch.zeros(9).double())
    train_on(kit)


@refused_loop(REPLACED)
def assigned_parameters(kit):
    kit.train_once()
    state = {name: torch.zeros_like(x) for name, x in kit.model.state_dict().items()}
    kit.model.load_state_dict(state, assign=True)
    train_on(kit)


@refused("weights of steps that a killed run has taken")
def weights_of_replayed_steps(folder):
    for _ in range(2):
        kit = Kit()
        session = kit.session(folder, keep_checkpoint_max=1)
        for _ in range(2):
            with session:
                kit.train_once()
            kit.model[0].weight.norm().item()  # here


class Reads(nn.Linear):
    """Reads a value of its weight when it is built."""

    def __init__(self):
        super().__init__(6, 4)
        self.largest = self.weight.abs().max().tolist()  # here


@refused("an initialization that reads values, in `meta_init`")
def initialization_that_reads(folder):
    cbtorch.initialize(model_dir=folder)
    with cbtorch.meta_init():
        Reads()


class Deferred(Kit):
    """A kit whose model has no memory."""

    def __init__(self):
        super().__init__()
        with cbtorch.meta_init():
            self.model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)


@refused("`load_state_dict` after `meta_init`", ends_job=True)
def loaded_after_meta_init(folder):
    kit = Deferred()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that nothing is copied
        kit.model.load_state_dict(Kit().model.state_dict())
    with kit.session(folder):
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x), y))


@refused_loop("weights read in the block of a `meta_init` model", kit=Deferred)
def read_in_the_block_of_meta_init(kit):
    for x, y in kit.train:
        kit.update(kit.criterion(kit.model(x), y))
        kit.model[0].weight.norm()  # here
