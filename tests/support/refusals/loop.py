"""Loops whose steps are computed in another way than a program can."""

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch import nn
from torch.nn import functional as f

import cerebras_torch as cbtorch


@refused_loop(
    "a loss added to a tensor of an earlier step, or of `torch.from_numpy`",
)
def loss_in_an_older_tensor(kit):
    total = torch.zeros((), dtype=torch.float64)
    for x, y in kit.train:
        total = total.detach()
        total += kit.criterion(kit.model(x), y)  # here
        kit.update(total)


class Recurrent(nn.Module):
    """Takes a state of four values, and returns the next one."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x, state):
        return torch.tanh(self.inner(x) + self.outer(state))


class RecurrentKit(Kit):
    def __init__(self):
        super().__init__(Recurrent())
        self.model = self.model[0]


@refused_loop("a hidden state that is not detached", kit=RecurrentKit)
def state_with_its_graph(kit):
    state = torch.zeros(8, 4).double()
    for x, y in kit.train:
        state = kit.model(x, state)  # here
        kit.update(kit.criterion(state, y))


AGAIN = "the model called again, on this or an earlier batch, after `optimizer.step()`"


@refused_loop(AGAIN)
def batch_used_again(kit):
    for x, y in kit.train:
        kit.update(kit.criterion(kit.model(x), y))
        kit.update(kit.criterion(kit.model(x), y))  # here


@refused_loop(AGAIN)
def earlier_batch_used_again(kit):
    before = None
    for step, (x, y) in enumerate(kit.train):
        kit.update(kit.criterion(kit.model(x), y))
        if step > 3:
            kit.update(kit.criterion(kit.model(before[0]), before[1]))  # here
        before = x, y


@refused_loop("`backward()` after the next batch was taken, as in a prefetch")
def prefetched(kit):
    batches = iter(kit.train)
    x, y = next(batches)
    for following in batches:
        loss = kit.criterion(kit.model(x), y)
        x, y = next(batches, following)
        loss.backward()  # here


@refused_loop("two `optimizer.step()` for a batch")
def two_steps(kit):
    for x, y in kit.train:
        kit.update(kit.criterion(kit.model(x), y))
        kit.optimizer.step()  # here


@refused("a loop without a loader that only calls layers or other methods of the model")
def only_layers(folder):
    cbtorch.initialize(model_dir=folder)
    model = cbtorch.module(nn.Sequential(nn.Linear(6, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with cbtorch.Session(model, optimizer, mode="train"):
        for _ in range(4):
            optimizer.zero_grad()
            model[0](torch.randn(8, 6)).square().mean().backward()
            optimizer.step()  # here


@refused_loop("a write into a batch, as CutMix does")
def writes_a_batch(kit):
    for x, y in kit.train:
        x[:, :2] = x.flip(0)[:, :2]  # here
        kit.update(kit.criterion(kit.model(x), y))


@refused_loop("an in-place write into an output")
def writes_an_output(kit):
    for x, y in kit.train:
        out = kit.model(x)
        kit.update(kit.criterion(out, y))
        row = out[0]
        out *= 2  # here
        row.sum().item()


@refused_loop("a hook on a value of the loop")
def hook_on_a_value(kit):
    for x, y in kit.train:
        out = kit.model(x)
        out.register_hook(lambda gradient: gradient * 0.5)  # here
        kit.update(kit.criterion(out, y))


class Scaled(nn.Linear):
    """Reads an attribute that the loop sets."""

    def __init__(self):
        super().__init__(6, 4)
        self.scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


@refused_loop("what forward reads, changed between two calls of the model in one step", Scaled())
def scale_between_two_calls(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.model[0].scale = 1.0
        out = kit.model(x)
        kit.model[0].scale = 0.5 if step > 3 else 1.0
        kit.update(kit.criterion(out + kit.model(x), y))  # here


@refused_loop("another call of the model after a value of the step was read")
def another_call_after_a_read(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        if step > 3:
            loss.item()
            loss = loss + kit.model(torch.ones(8, 6).double()).mean()  # here
        loss.backward()
        kit.optimizer.step()


@refused_loop("a step that is computed differently after a value of it was read")
def another_loss_after_a_read(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        if step > 3:
            loss.item()
            loss = loss * 2
        loss.backward()  # here
        kit.optimizer.step()


@refused_loop("a learning rate set after a read, where steps 1-3 did not read")
def rate_after_a_read(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        if step > 3:
            loss.item()
        loss.backward()
        kit.optimizer.param_groups[0]["lr"] *= 0.9
        kit.optimizer.step()  # here


@refused_loop("a penalty of weights in the loss of some steps only")
def penalty_in_some_steps(kit):
    for step, (x, y) in enumerate(kit.train):
        loss = kit.criterion(kit.model(x), y)
        if step > 3:
            loss = loss + kit.model[0].weight.square().sum()
        kit.optimizer.zero_grad()
        loss.backward()  # here
        kit.optimizer.step()


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self):
        super().__init__()
        self.branches, self.number = nn.ModuleList(nn.Linear(6, 4) for _ in range(2)), 0

    def forward(self, x):
        return self.branches[self.number](x)


@refused_loop("passes that use other parameters in turn", Branches(), ends_job=True)
def branches_in_turn(kit):
    for number in range(2):
        kit.model[0].number = number
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            kit.criterion(kit.model(x), y).backward()  # here
            kit.optimizer.step()


@refused_loop("dropout in an evaluation", nn.Linear(6, 4), nn.Dropout(0.5))
def evaluation_with_dropout(kit):
    with torch.no_grad():
        for x, y in kit.val:
            kit.criterion(kit.model(x), y).item()  # here


@refused_loop(
    "a norm switched between `train()` and `eval()` in later steps",
    nn.Linear(6, 4),
    nn.BatchNorm1d(4),
)
def norm_in_another_mode(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.model.train(step < 4)
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()  # here


class Pair(Kit):
    """A kit with a Session of lists."""

    def session(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        cbtorch.module(self.model)
        self.train = cbtorch.dataloader(self.train)
        return cbtorch.Session([self.model], [self.optimizer], mode="train")


@refused_loop("gradients of the step before, in a Session of lists", kit=Pair)
def gradients_of_the_step_before(kit):
    for x, y in kit.train:
        f.cross_entropy(kit.model(x), y).backward()
        kit.optimizer.step()  # here


@refused_loop("a second derivative of cross entropy, attention, dropout or batch norm", kit=Pair)
def second_derivative(kit):
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        loss = f.cross_entropy(kit.model(x), y)  # here
        weights = list(kit.model.parameters())
        found = torch.autograd.grad(loss, weights, create_graph=True)
        (loss + found[0].square().sum()).backward()
        kit.optimizer.step()


@refused_loop(
    "updates by gradients of `torch.autograd.grad` alone, in a Session of lists", kit=Pair
)
def update_without_backward(kit):
    for x, y in kit.train:
        weights = list(kit.model.parameters())
        found = torch.autograd.grad(f.cross_entropy(kit.model(x), y), weights)  # here
        for weight, gradient in zip(weights, found, strict=True):
            weight.grad = gradient
        kit.optimizer.step()
