"""Sessions: their models, their order, and their folders."""

import warnings

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn
from torch.utils.data import DataLoader

import cerebras_torch as cbtorch


class Wrapper(nn.Module):
    """A wrapper of a model, as those of other libraries."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


@refused("a model in another wrapper than those of `torch.compile` and `DataParallel`")
def wrapped_model(folder):
    kit = Kit()
    kit.session(folder)
    cbtorch.Session(Wrapper(kit.model), kit.optimizer, mode="train")  # here


SCRIPTED = "a model, or a part of one, of `torch.jit`"


@refused(SCRIPTED)
def scripted_layer(folder):
    cbtorch.initialize(model_dir=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that it is deprecated
        layer = torch.jit.script(nn.Linear(6, 4))
    cbtorch.module(nn.Sequential(layer))  # here


@refused(SCRIPTED)
def traced_model(folder):
    cbtorch.initialize(model_dir=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that it is deprecated
        model = torch.jit.trace(nn.Linear(6, 4), torch.ones(8, 6))
    cbtorch.module(model)  # here


@refused_loop("a Session in the block of another")
def session_within_a_session(kit):
    with cbtorch.Session(kit.model, mode="eval"):  # here
        pass


@refused("a second training in the same model_dir")
def second_training(folder):
    kit = Kit()
    with kit.session(folder):
        kit.train_once()
    kit.model = cbtorch.module(nn.Linear(6, 4).double())
    kit.optimizer = torch.optim.SGD(kit.model.parameters(), 0.1)
    with cbtorch.Session(kit.model, kit.optimizer, mode="train"):  # here
        kit.train_once()


@refused(
    "a loader made after the first Session, in a job",
    python="streamers are the script's process: a warning",
)
def loader_made_late(folder):
    kit = Kit()
    with kit.session(folder):
        kit.train = cbtorch.dataloader(DataLoader(kit.val.dataset, 4))
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x), y))
