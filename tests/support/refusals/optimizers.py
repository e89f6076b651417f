"""Optimizers: their options, their state, their groups and closures."""

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn, optim

import cerebras_torch as cbtorch


@refused("`differentiable=True` of an optimizer")
def differentiable(folder):
    cbtorch.initialize(model_dir=folder)
    model = cbtorch.module(nn.Linear(6, 4))
    optimizer = optim.SGD(model.parameters(), 0.1, differentiable=True)
    cbtorch.Session(model, optimizer, mode="train")  # here


@refused("`eps=0` of an optimizer")
def no_eps(folder):
    cbtorch.initialize(model_dir=folder)
    model = cbtorch.module(nn.Linear(6, 4))
    cbtorch.Session(model, optim.Adam(model.parameters(), eps=0.0), mode="train")  # here


@refused("`torch.optim.SparseAdam`")
def sparse_adam(folder):
    cbtorch.initialize(model_dir=folder)
    model = cbtorch.module(nn.Embedding(6, 4, sparse=True))
    cbtorch.Session(model, optim.SparseAdam(model.parameters()), mode="train")  # here


@refused_loop("betas, eps, momentum that the loop changes")
def changes_momentum(kit):
    for step, (x, y) in enumerate(kit.train):
        if step:
            kit.optimizer.param_groups[0]["momentum"] = 0.1
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()  # here


@refused_loop("`load_state_dict` of the optimizer between steps")
def loads_state(kit):
    state = kit.optimizer.state_dict()
    kit.train_once()
    kit.optimizer.load_state_dict(state)  # here


@refused_loop("a write into `optimizer.state` in the block")
def writes_state(kit):
    for x, y in kit.train:  # here
        kit.update(kit.criterion(kit.model(x), y))
        kit.optimizer.state[kit.model[0].weight]["momentum_buffer"] = torch.zeros(9, 6)


@refused("optimizer state loaded by a restarted script that the first start did not load")
def restarts_with_its_own_state(folder):
    state = {}
    for _ in range(2):
        kit = Kit(optimizer=optim.Adam)
        if state:
            kit.optimizer.load_state_dict(state)
        with kit.session(folder):
            for x, y in kit.train:  # here
                kit.update(kit.criterion(kit.model(x), y))
        state = kit.optimizer.state_dict()


@refused("an optimizer stepped in PyTorch between Sessions")
def steps_between_sessions(folder):
    kit = Kit()
    session = kit.session(folder)
    with session:
        kit.train_once()
    x, y = next(iter(kit.val))
    kit.update(kit.criterion(kit.model(x), y))
    with session:
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x), y))


class SGD(optim.SGD):
    """A class of the script, which calls its closure twice."""

    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
                closure()
        return super().step()


@refused_loop(
    "a class of the script with a [rule](#what-works) that calls its closure twice, or after it "
    "has moved the weights",
    optimizer=lambda p: SGD(p, 0.05, momentum=0.9),
)
def closure_called_twice(kit):
    for x, y in kit.train:

        def closure(x=x, y=y):
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            return loss

        kit.optimizer.step(closure)  # here


def last_layer(parameters):
    return optim.AdamW(list(parameters)[2:], 0.01)


GROUPS = (
    "parameters that the block puts into a group's list, takes from it or moves to another group"
)


@refused_loop(GROUPS, optimizer=last_layer)
def parameter_put_into_a_group(kit):
    kit.train_once()
    kit.optimizer.param_groups[0]["params"].append(kit.model[0].weight)
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()  # here


@refused_loop(GROUPS)
def parameter_taken_from_a_group(kit):
    kit.train_once()
    kit.optimizer.param_groups[0]["params"].pop()
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()  # here


@refused_loop(
    "`add_param_group` of parameters that had gradients before, between `backward()` and `step()`",
    optimizer=last_layer,
)
def group_added_after_backward(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        if step == 4:
            kit.optimizer.add_param_group({"params": kit.model[0].parameters()})
        kit.optimizer.step()  # here
