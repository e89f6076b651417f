"""Writes into weights, weights that are gone, and models that are built without memory."""

import warnings

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn
from torch.nn.utils import prune

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


class Momentum(nn.Linear):
    """Keeps a value of its earlier mean."""

    def __init__(self):
        super().__init__(6, 4)
        self.mean = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x):
        decayed = self.mean.detach() * 0.9
        self.mean.data = decayed + x.detach().mean(0) * 0.1
        return super().forward(x - decayed)  # here


@refused_loop("a value of a weight from before forward's write, used after it", Momentum())
def earlier_value(kit):
    kit.train_once()


class Averages(nn.Linear):
    """Replaces a parameter by a moving average."""

    def __init__(self):
        super().__init__(6, 4)
        self.mean = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x):
        self.mean = nn.Parameter(self.mean * 0.9 + x.mean(0) * 0.1, requires_grad=False)
        return super().forward(x - self.mean)


@refused_loop("a `Parameter` that forward replaces, as some do with moving averages", Averages())
def replaced_in_forward(kit):
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()  # here


PRUNED = "`torch.nn.utils.prune` in the block"


@refused_loop(PRUNED)
def first_pruning(kit):
    kit.train_once()
    prune.random_unstructured(kit.model[0], "weight", 0.3)  # here


class Pruned(Kit):
    """A kit whose first layer is pruned."""

    def __init__(self):
        super().__init__()
        prune.l1_unstructured(self.model[0], "weight", 0.3)


@refused_loop(PRUNED, kit=Pruned)
def second_pruning(kit):
    kit.train_once()
    prune.l1_unstructured(kit.model[0], "weight", 0.3)  # here


@refused_loop(PRUNED, kit=Pruned)
def pruning_of_all_layers(kit):
    kit.train_once()
    parameters = [(kit.model[0], "weight"), (kit.model[2], "weight")]
    prune.global_unstructured(parameters, prune.L1Unstructured, amount=0.3)  # here


@refused_loop(PRUNED, kit=Pruned)
def removed_mask(kit):
    kit.train_once()
    prune.remove(kit.model[0], "weight")  # here


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
