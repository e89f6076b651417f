"""Operators and layers of forward."""

import warnings

import torch
from support.refusals import refused, refused_loop, refused_model
from support.torch_loops import Kit
from torch import nn
from torch.ao import quantization
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint


class Then(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


def refused_function(row):
    """Register a function that forward calls with the output of a layer, of shape [8, 4]."""

    def register(function):
        def train(kit):
            kit.train_once()

        train.__name__ = function.__name__
        refused_loop(row, Then(function))(train)
        return function

    return register


@refused_function("checkpointing of dropout")
def checkpointed_dropout(x):
    return checkpoint(f.dropout, x, use_reentrant=False)  # here


RANDOM = "`F.rrelu` in training; gradients that are edited with random numbers from a later step on"


@refused_function(RANDOM)
def rrelu(x):
    return f.rrelu(x, training=True)  # here


@refused_loop(RANDOM)
def noise_on_gradients_later(kit):
    def edit(step):
        if step > 3:
            gradient = kit.model[0].weight.grad
            gradient.add_(torch.randn_like(gradient))  # here

    kit.train_once(edit)


@refused_function("`nn.EmbeddingBag(scale_grad_by_freq=True)`")
def embedding_bag(x):
    rows = torch.arange(8)[None]
    return x * f.embedding_bag(rows, x, scale_grad_by_freq=True, mode="sum").sum()  # here


@refused_function("Bessel functions but I, as `torch.special.bessel_j0`")
def bessel(x):
    return x * torch.special.bessel_j0(x.detach())  # here


OTHERS = "`geqrf`, `linalg.eig` and others without an emitter"


@refused_function(OTHERS)
def geqrf(x):
    return x * torch.geqrf(x.detach())[0].sum()  # here


@refused_function(OTHERS)
def eigenvalues(x):
    return x * torch.linalg.eig(x[:4].detach())[0].real.sum()  # here


@refused("`prepare_qat` and other fused observers")
def quantization_aware(folder):
    kit = Kit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that it is deprecated
        kit.model.qconfig = quantization.get_default_qat_qconfig("x86")
        quantization.prepare_qat(kit.model, inplace=True)
    with kit.session(folder):
        for x, y in kit.train:
            kit.update(kit.criterion(kit.model(x), y))  # here


SCATTERED = (
    "`scatter` to other indices than those of `topk` or `sort` along its axis, `index_put` to "
    "indices that may repeat"
)


@refused_function(SCATTERED)
def scatter(x):
    return x.scatter(1, (x > 0).long(), x)  # here


@refused_function(SCATTERED)
def index_put(x):
    return x.index_put(((x[:, 0] > 0).long(),), x)  # here


@refused_loop("rows written by a mask outside of forward, `y[mask] = x`")
def rows_by_a_mask(kit):
    for x, y in kit.train:
        out = kit.model(x).clone()
        out[x[:, 0] > 0] = out[0]  # here
        kit.update(kit.criterion(out, y))


@refused_model("a batch norm of a teacher in training mode")
class Teacher(nn.Module):
    """Subtracts the mean of a network that is not a part of the model."""

    def __init__(self):
        super().__init__()
        self.linear, self.others = nn.Linear(6, 4), [nn.BatchNorm1d(6).double()]

    def forward(self, x):
        with torch.no_grad():
            target = self.others[0](x)  # here
        return self.linear(x) - target.mean()


@refused_model("a buffer that forward makes of the batch or of weights")
class MakesABuffer(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.mean is None:
            self.register_buffer("mean", x.mean(0))  # here
        return super().forward(x - self.mean)


@refused_model("a write into a weight that forward has used, or into a part of one")
class WritesAfterUse(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x):
        out = super().forward(x)
        with torch.no_grad():
            self.weight.mul_(0.5)  # here
        return out


@refused_model("a write into a weight that forward has used, or into a part of one")
class WritesAPart(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x):
        with torch.no_grad():
            self.weight[0].mul_(0.5)  # here
        return super().forward(x)


@refused_model("a write into a weight that forward has used, or into a part of one")
class AssignsAfterItsUse(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x):
        out = super().forward(x)
        self.weight.data = self.weight.data * 0.5  # here
        return out


OTHER = torch.ones(4, requires_grad=True)


@refused_function("a weight outside of the model")
def weight_of_the_script(x):
    return x * OTHER  # here
