"""What docs/pytorch.md says is refused, as scripts; each is run as a program, too, by `run_all`.

A case is named as its row in the first column of the page's tables.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn, optim
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import cerebras_torch as cbtorch
from csrun.base.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs/pytorch.md"
OTHER = torch.ones(40, requires_grad=True)


class Halved(nn.Embedding):
    """A table that is changed after each look."""

    def forward(self, labels):
        found = super().forward(labels)
        with torch.no_grad():
            self.weight.mul_(0.5)
        return found


#: What forward makes of [6, 40].
IN_FORWARD = {
    "`.to(device)`": lambda x: x + torch.ones(40, device="meta"),
    "a weight outside of the model": lambda x: x * OTHER,
    "a write into a weight that forward has used, or into a part of one": Halved(6, 40),
    "checkpointing of dropout": lambda x: checkpoint(f.dropout, x, use_reentrant=False),
    "`F.rrelu` in training; gradients that are edited with random numbers from a later step on": (
        lambda x: f.rrelu(x, training=True)
    ),
    "`nn.EmbeddingBag(scale_grad_by_freq=True)`": lambda x: (
        x * f.embedding_bag(torch.arange(6)[None], x.t(), scale_grad_by_freq=True, mode="sum").sum()
    ),
    "Bessel functions but I, as `torch.special.bessel_j0`": lambda x: (
        x * torch.special.bessel_j0(x.detach())
    ),
    "`geqrf`, `linalg.eig` and others without an emitter": lambda x: (
        x * torch.geqrf(x.detach())[0].sum()
    ),
}
#: What makes an optimizer of parameters.
OPTIMIZERS = {
    "`differentiable=True` of an optimizer": lambda p: optim.SGD(p, differentiable=True),
    "`eps=0` of an optimizer": lambda p: optim.Adam(p, eps=0.0),
}


class Script:
    """A script of a few steps: a model of [6, 4] with `then` before its loss, a loader, a loop."""

    def __init__(self, then=lambda x: x, optimizer=lambda p: optim.SGD(p, 0.1)):
        torch.manual_seed(1)
        self.model, self._optimizer = Model(then), optimizer
        if isinstance(then, nn.Embedding):
            labels = torch.arange(6)
            self.model.table, self.model.then = then, [lambda x: x * then(labels)]
        self.data = TensorDataset(torch.randn(24, 4), torch.arange(6).repeat(4))

    def run(self, folder, loop, **options):
        cbtorch.initialize(model_dir=folder, **options)
        self.optimizer = self._optimizer(self.model.parameters())
        self.loader = cbtorch.dataloader(DataLoader(self.data, 6))
        self.model = cbtorch.module(self.model)
        with cbtorch.Session(self.model, self.optimizer, mode="train"):
            for step, (x, y) in enumerate(self.loader):
                self.optimizer.zero_grad()
                loop(self, step, x, y)

    def loss(self, x, y):
        return f.cross_entropy(self.model(x), y)


class Model(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.linear, self.then = nn.Linear(4, 40), [then]

    def forward(self, x):
        return self.then[0](self.linear(x))


def plain(script, step, x, y):
    script.loss(x, y).backward()
    script.optimizer.step()


def changes_momentum(script, step, x, y):
    if step:
        script.optimizer.param_groups[0]["momentum"] = 0.1
    plain(script, step, x, y)


def in_16_bits(script, step, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        plain(script, step, x, y)


def loads_the_optimizer(script, step, x, y):
    if step:
        script.optimizer.load_state_dict({})
    plain(script, step, x, y)


def two_backwards(script, step, x, y):
    loss = script.loss(x, y)
    loss.backward(retain_graph=True)
    loss.backward()
    script.optimizer.step()


def gradients_of_the_loop(script, step, x, y):
    torch.autograd.grad(script.loss(x, y), list(script.model.parameters()))


def gradient_of_the_loss(script, step, x, y):
    script.loss(x, y).backward(gradient=torch.ones(()))
    script.optimizer.step()


def two_steps(script, step, x, y):
    plain(script, step, x, y)
    script.optimizer.step()


def late_output(script, step, x, y):
    output = script.model(x)
    loss = f.cross_entropy(output, y)
    loss.backward()
    script.optimizer.step()
    loss.item()
    if step == 3:
        output.sum().item()


def writes_a_weight_within_a_step(script, step, x, y):
    loss = script.loss(x, y)
    if step == 3:
        with torch.no_grad():
            script.model.linear.bias.clamp_(-1, 1)
    loss.backward()
    script.optimizer.step()


def a_new_parameter(script, step, x, y):
    if step == 3:
        script.model.linear.bias = nn.Parameter(torch.zeros(40))
    plain(script, step, x, y)


def writes_the_state(script, step, x, y):
    plain(script, step, x, y)
    script.optimizer.state[script.model.linear.weight]["momentum_buffer"] = torch.zeros(40, 4)


def edits_by_a_value(script, step, x, y):
    loss = script.loss(x, y)
    loss.backward()
    script.model.linear.weight.grad.mul_(loss.detach().sqrt())
    script.optimizer.step()


#: What a loop does with each batch.
IN_LOOP = {
    "autocast in a float32 run": in_16_bits,
    "betas, eps, momentum that the loop changes": changes_momentum,
    "`load_state_dict` of the optimizer between steps": loads_the_optimizer,
    "two `backward()` for a batch": two_backwards,
    "`torch.autograd.grad` in the loop": gradients_of_the_loop,
    "`backward(create_graph=True)`, `gradient=`": gradient_of_the_loss,
    "two `optimizer.step()` for a batch": two_steps,
    "an output first read after its step": late_output,
    "a new `Parameter` in the block, `load_state_dict(assign=True)`": a_new_parameter,
    "a write into `optimizer.state` in the block": writes_the_state,
    "a write into a weight within a step": writes_a_weight_within_a_step,
    "gradient edits by values that the loop computes": edits_by_a_value,
}


def messages_of_the_page() -> dict[str, str]:
    """First column to second, of both tables."""
    section = PAGE.read_text().partition("## What is refused")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if " | " in line]
    return {row[0]: row[1].strip("`") for row in found if row[0] != "construct"}


def cases() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """What each row does in a folder of its own."""
    for what, then in IN_FORWARD.items():
        yield what, lambda folder, then=then: Script(then).run(folder, plain)
    for what, optimizer in OPTIMIZERS.items():
        yield what, lambda folder, o=optimizer: Script(optimizer=o).run(folder, plain)
    for what, loop in IN_LOOP.items():
        yield what, lambda folder, loop=loop: Script().run(folder, loop)


def run_all() -> None:
    """Print what becomes of each, as `row => message`."""
    for number, (what, case) in enumerate(cases()):
        try:
            case(Path(f"case_{number}"))
        except UsageError as error:
            print(f"{what} => {error}", flush=True)
        else:
            print(f"{what} => runs", flush=True)


if __name__ == "__main__":
    run_all()
