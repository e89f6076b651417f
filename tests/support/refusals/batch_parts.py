"""Batches in parts: micro-batches, and several CS systems."""

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn
from torch.utils.data import DataLoader, Subset

ONE_SYSTEM = {
    "python": "a process has one CS system: num_csx has no effect, which the log says",
    "python_pt": "num_csx is refused: only weight streaming uses several CS systems",
}
MIXED = (
    "batch norm, a comparison of samples, or a quotient or root of sums over samples, with "
    "`micro_batch_size` or `num_csx`"
)


@refused_loop("a tensor of the script, with `num_csx` or `micro_batch_size`", micro_batch_size=2)
def tensor_of_the_script(kit):
    for x, y in kit.train:
        weights = torch.rand(8).double()
        each = nn.functional.cross_entropy(kit.model(x), y, reduction="none")
        kit.update((each * weights).mean())  # here


@refused_loop(MIXED, nn.Linear(6, 4), nn.BatchNorm1d(4), micro_batch_size=2)
def batch_norm(kit):
    for x, y in kit.train:
        kit.update(kit.criterion(kit.model(x), y))  # here


@refused_loop(MIXED, micro_batch_size=2)
def difference_to_the_mean(kit):
    for x, y in kit.train:
        out = kit.model(x)
        kit.update(kit.criterion(out - out.mean(0), y))  # here


@refused_loop(MIXED, micro_batch_size=2)
def quotient_of_sums(kit):
    for x, y in kit.train:
        each = nn.functional.cross_entropy(kit.model(x), y, reduction="none")
        mask = (x[:, 0] > 0).double()
        kit.update((each * mask).sum() / mask.sum())  # here


@refused("accumulation on several CS systems", systems=2, **ONE_SYSTEM)
def accumulation_on_two_systems(folder):
    kit = Kit()
    with kit.session(folder, num_csx=2):
        for number, (x, y) in enumerate(kit.train):  # here
            kit.criterion(kit.model(x), y).backward()
            if number % 2:
                kit.optimizer.step()
                kit.optimizer.zero_grad()


@refused("a last batch that systems cannot share", systems=2, **ONE_SYSTEM)
def last_batch_of_two_systems(folder):
    kit = Kit()
    kit.train = DataLoader(Subset(kit.train.dataset, range(43)), 8)
    with kit.session(folder, num_csx=2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            kit.criterion(kit.model(x), y).backward()
            kit.optimizer.step()  # here
