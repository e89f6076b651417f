"""Gradients: reads, edits, second derivatives, several batches of a step."""

import torch
from support.refusals import refused_loop
from torch import nn
from torch.nn import functional as f


def norm(kit):
    return kit.model[0].weight.grad.norm().item()  # here


EDITED = "gradients read in a step that edits them through a view or by weights"


@refused_loop(EDITED)
def read_after_an_edit_of_a_view(kit):
    def edit(step):
        kit.model[0].weight.grad[0].mul_(2)
        norm(kit)

    kit.train_once(edit)


@refused_loop(EDITED)
def read_after_an_edit_by_weights(kit):
    def edit(step):
        kit.model[0].weight.grad.add_(kit.model[0].weight.detach(), alpha=0.01)
        norm(kit)

    kit.train_once(edit)


@refused_loop("gradients read after a second batch is accumulated")
def read_after_a_second_batch(kit):
    for number, (x, y) in enumerate(kit.train):
        kit.criterion(kit.model(x), y).backward()
        if number % 2:
            norm(kit)
            kit.optimizer.step()
            kit.optimizer.zero_grad()


@refused_loop(
    "gradients first read after the loss of a later step, or kept and read in another step"
)
def read_after_the_loss(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.update(kit.criterion(kit.model(x), y)).item()
        if step == 5:
            norm(kit)


@refused_loop("gradients read after `zero_grad()`")
def read_after_zero_grad(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad(set_to_none=step < 4)
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()
        if step == 4:
            gradient = kit.model[0].weight.grad
            kit.optimizer.zero_grad()
            gradient.norm().item()  # here


@refused_loop("`torch.autograd.grad` in the loop")
def autograd_grad(kit):
    for x, y in kit.train:
        loss = kit.criterion(kit.model(x), y)
        torch.autograd.grad(loss, list(kit.model.parameters()))  # here


OPTIONS = "`backward(create_graph=True)`, `gradient=`"


@refused_loop(OPTIONS)
def create_graph(kit):
    for x, y in kit.train:
        kit.criterion(kit.model(x), y).backward(create_graph=True)  # here


@refused_loop(OPTIONS)
def gradient_of_the_loss(kit):
    for x, y in kit.train:
        kit.criterion(kit.model(x), y).backward(gradient=torch.tensor(2.0).double())  # here


@refused_loop("`torch.func.grad` and `vmap` in the loop")
def functional_grad(kit):
    def loss_of(weights, x, y):
        return f.cross_entropy(torch.func.functional_call(kit.model, weights, (x,)), y)

    for x, y in kit.train:
        weights = {name: p.detach() for name, p in kit.model.named_parameters()}
        torch.func.grad(loss_of)(weights, x, y)  # here


@refused_loop("two `backward()` for a batch")
def two_backwards(kit):
    for x, y in kit.train:
        loss = kit.criterion(kit.model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()  # here


@refused_loop("gradient edits by values that the loop computes")
def edited_by_a_value(kit):
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.model[0].weight.grad.mul_(loss.detach().sqrt())  # here
        kit.optimizer.step()


@refused_loop("more than eight forms of gradient edits")
def another_edit_in_each_step(kit):
    for part in range(3):

        def edit(step, part=part):
            kit.model[0].weight.grad.mul_(1 + max(6 * part + step - 3, 0))  # here

        kit.train_once(edit)


def accumulate(kit, edit=lambda: None):
    for number, (x, y) in enumerate(kit.train):  # here
        kit.criterion(kit.model(x), y).backward()
        if number % 2:
            edit()
            kit.optimizer.step()  # here
            kit.optimizer.zero_grad()


@refused_loop("other edits of accumulated gradients than clipping")
def edits_sums(kit):
    accumulate(kit, lambda: [p.grad.mul_(0.5) for p in kit.model.parameters()])


@refused_loop("batch norm in training with accumulation", nn.Linear(6, 4), nn.BatchNorm1d(4))
def accumulates_with_a_batch_norm(kit):
    accumulate(kit)
