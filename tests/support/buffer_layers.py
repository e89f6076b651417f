"""Layers with buffers as switches or counters, or with weights set by the first batch."""

import random

import torch
from torch import nn
from torch.nn import functional


class ActNorm(nn.Module):
    """Layer that scales inputs by mean and deviation of the first batch, as in Glow and VQGAN."""

    off, on = torch.tensor(0, dtype=torch.uint8), 1

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)
        self.loc, self.scale = nn.Parameter(torch.zeros(1, 6)), nn.Parameter(torch.ones(1, 6))
        self.register_buffer("initialized", self.off.clone())

    def initialize(self, x):
        with torch.no_grad():
            self.loc.data.copy_(-x.mean(0, keepdim=True))
            self.scale.copy_(1 / (x.std(0, keepdim=True) + 1e-6))

    def forward(self, x):
        x = self.first(x)
        if self.training and self.initialized.item() == 0:
            self.initialize(x)
            self.initialized.fill_(self.on)
        return self.last(self.scale * (x + self.loc))


class ActNormOfFlag(ActNorm):
    """The same with an attribute instead of the buffer."""

    is_set = False

    def forward(self, x):
        x = self.first(x)
        if not self.is_set:
            self.initialize(x)
            self.is_set = True
        return self.last(self.scale * (x + self.loc))


class Codebook(nn.Module):
    """Vector quantizer with codes from the first batch, updated as moving averages."""

    off = torch.tensor([False])

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)
        self.register_buffer("initted", self.off.clone())
        self.register_buffer("cluster_size", torch.zeros(5))
        self.register_buffer("embed", torch.zeros(5, 6))
        self.register_buffer("embed_avg", torch.zeros(5, 6))

    @torch.no_grad()
    def init_embed_(self, x):
        if self.initted:
            return
        self.embed.data.copy_(x[:5])
        self.embed_avg.data.copy_(x[:5] * 2)
        self.cluster_size.data.fill_(2)
        self.initted.data.copy_(torch.tensor([True]))

    def forward(self, x):
        z = self.first(x)
        self.init_embed_(z)
        near = (z[:, None] - self.embed).square().sum(2).argmin(1)
        code = self.embed[near]
        if self.training:
            hits = functional.one_hot(near, 5).to(z.dtype)
            self.cluster_size.data.lerp_(hits.sum(0), 0.2)
            self.embed_avg.data.lerp_(hits.t() @ z.detach(), 0.2)
            self.embed.data.copy_(self.embed_avg / (self.cluster_size + 1e-5)[:, None])
        return self.last(z + (code - z).detach())


class CodebookOfFloat(Codebook):
    """The same with a float as switch, as in vector-quantize-pytorch."""

    off = torch.Tensor([False])


class CodebookReplaced(Codebook):
    """The same with a switch that is replaced by a new tensor."""

    def init_embed_(self, x):
        if not self.initted.item():
            with torch.no_grad():
                self.embed.copy_(x[:5])
                self.cluster_size.fill_(1.0)
            self.initted = torch.tensor([True])


class Counting(nn.Module):
    """Base of layers with an integer buffer that forward counts up."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)
        self.register_buffer("steps", torch.tensor(0))


class WarmMean(Counting):
    """Layer that sets its mean in the first step, and moves it in later ones."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        h = self.first(x)
        if self.training:
            self.steps += 1
            with torch.no_grad():
                if self.steps == 1:
                    self.mean.copy_(h.mean(0))
                else:
                    self.mean.lerp_(h.mean(0), 0.1)
        return self.last(h - self.mean)


class ReadBefore(Counting):
    """Layer that reads the counter before it counts."""

    def forward(self, x):
        h = self.first(x)
        if self.steps < 3:
            h = h * 0.5
        self.steps.add_(1)
        return self.last(h)


class Annealed(Counting):
    """Layer that computes with the counter."""

    def forward(self, x):
        self.steps += 1
        return self.last(self.first(x) * torch.clamp(self.steps.to(x.dtype) / 4, max=1.0))


class LateGate(Counting):
    """Layer with a gate that opens in a step of another branch, which compares two constants."""

    def forward(self, x):
        h = self.first(x)
        h = h.tanh() if random.random() < 0.75 else h
        self.steps += 1
        return self.last(h * (self.steps > 2))


class Usage(Counting):
    """Layer that counts usage, in place and by replacement."""

    def forward(self, x):
        h = self.first(x)
        self.steps += (h[0] > 0).sum()
        self.steps = self.steps + 1
        return self.last(h * (1 + self.steps % 2))


class CumulativeNorm(nn.Module):
    """Layer with the mean of all batches' statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class SkippedNorm(nn.Module):
    """Layer that skips a norm in some steps, whose counter counts the others."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.norm(x) if random.random() < 0.6 else x)


class LimitedRows(nn.Module):
    """Table whose looked-up rows are scaled down to a maximum norm in each step."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 6, max_norm=1.5), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.table((x.abs() * 2).long().clamp(max=3)).mean(1))


class Counted(Counting):
    """Layer that only counts."""

    def forward(self, x):
        self.steps += 3
        return self.last(self.first(x).tanh())


ALL = [
    ActNorm,
    ActNormOfFlag,
    Codebook,
    CodebookOfFloat,
    CodebookReplaced,
    WarmMean,
    ReadBefore,
    Annealed,
    LateGate,
    Usage,
    CumulativeNorm,
    SkippedNorm,
    LimitedRows,
    Counted,
]
