"""Rebatching of a recorded step: equal to a recording with the smaller batch size."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.programs import options_of  # noqa: E402
from support.recorded import record  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.mode import RunMode  # noqa: E402
from csrun.cirh import print_module  # noqa: E402
from csrun.cirh.algorithms import SgdAttr  # noqa: E402
from csrun.cirh.ops.learning import MinimizeOp  # noqa: E402
from csrun.cirh.ops.model import Distribution, InitializerAttr  # noqa: E402
from csrun.cirh.ops.padding import ShareOp  # noqa: E402
from csrun.compiler import CompileError, rebatch  # noqa: E402
from csrun.compiler.passes import PASSES, run_passes  # noqa: E402
from csrun.compiler.passes.rebatching import Rebatching  # noqa: E402
from csrun.compiler.passes.rewrite import (  # noqa: E402
    Canonicalization,
    ConstantFolding,
    DeadCodeElimination,
)
from csrun.nn import SGD, mean  # noqa: E402
from csrun.nn import sum as sum_of  # noqa: E402
from csrun.nn.tracer import Tracer  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of  # noqa: E402

B, PART, T, V, D = 12, 3, 5, 13, 8
PREPARING = (Canonicalization(), ConstantFolding(), DeadCodeElimination())


class Language(nn.Module):
    """Positions, masked attention with two heads, dropout, a norm, a tied table."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.qkv, self.norm = nn.Linear(D, 3 * D), nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        rows, length = ids.shape
        places = torch.arange(length).expand(rows, -1)  # the same for each sample
        x = f.dropout(self.table(ids) + self.places(places), 0.2)
        parts = self.qkv(x).split(D, dim=2)
        q, k, v = (p.view(rows, length, 2, -1).transpose(1, 2) for p in parts)
        mask = (ids != 0)[:, None, None, :]
        own = f.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)
        x = x + own.transpose(1, 2).reshape(rows, length, D)
        causal = torch.ones(length, length).tril().expand(rows, length, length)
        return self.head(self.norm(x + torch.bmm(causal, x)))


class Images(nn.Module):
    """Convolutions, pooling, a group norm, and a linear layer on the flattened result."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.norm, self.out = nn.GroupNorm(2, 4), nn.Linear(16, V)

    def forward(self, x):
        x = f.max_pool2d(f.relu(self.norm(self.first(x))), 2)
        return self.out(f.avg_pool2d(self.second(f.pad(x, (1, 1, 1, 1))), 2).flatten(1))


class Recurrent(nn.Module):
    """A cell that runs along a sequence from a zero state."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(V, D)
        self.cell, self.out = nn.LSTMCell(D, D), nn.Linear(D, V)

    def forward(self, ids):
        x, state, found = self.table(ids), None, []
        for place in range(T):
            state = self.cell(x[:, place], state)
            found.append(state[0])
        return self.out(torch.stack(found, 1))


class Encoder(nn.Module):
    """Time-major layout: dropout of [T, B, D] and [B H, T, T], and a recurrent network's."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(V, D), nn.Linear(D, V)
        self.layer = nn.TransformerEncoderLayer(D, 2, 16, 0.3)
        self.attention = nn.MultiheadAttention(D, 2, 0.3)
        self.recurrent = nn.LSTM(D, D, 2, dropout=0.3)

    def forward(self, ids):
        x = self.layer(self.table(ids).transpose(0, 1))
        x, _ = self.attention(x, x, x)
        x = f.dropout(x.flatten(0, 1), 0.3).view_as(x)
        return self.out(self.recurrent(x)[0].transpose(0, 1))


def tokens(rows):
    return torch.randint(V, (2, rows, T)).unbind()


def images(rows):
    return torch.randn(rows, 2, 8, 8), torch.randint(V, (rows,))


def cross_entropy(logits, labels):
    return f.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=1)


def step(criterion):
    def run(model, batch):
        model.zero_grad()
        loss = criterion(model(batch[0]), batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    return run


def recorded(model, batch, run):
    """Module of a step before any pass."""
    names = [name for name, _ in model.named_parameters()]
    return module_of(record(model, batch, run), dict.fromkeys(names, SgdAttr.of(0.1)))


@pytest.mark.parametrize(
    ("kind", "batch"),
    [(Language, tokens), (Images, images), (Recurrent, tokens), (Encoder, tokens)],
)
def test_a_part_is_what_is_recorded_with_its_samples(kind, batch):
    model, run = kind(), step(cross_entropy)
    whole, part = (recorded(model, batch(rows), run) for rows in (B, PART))
    rebatch(whole, options_of(micro_batches=B // PART), B)
    for module in (whole, part):
        run_passes(module, PASSES)
    assert print_module(whole) == print_module(part)


@pytest.mark.parametrize(
    ("kind", "batch"),
    [(Language, tokens), (Images, images), (Recurrent, tokens), (Encoder, tokens)],
)
def test_a_part_as_the_whole_is_the_whole(kind, batch):
    module = recorded(kind(), batch(B), step(cross_entropy))
    run_passes(module, PREPARING)
    before = print_module(module)
    texts = []
    for samples in (PART, B):
        run_passes(module, (Rebatching(samples), *PREPARING))
        texts.append(print_module(module))
    assert texts[0] != before
    assert texts[1] == before


def of_the_batch(then, criterion=f.cross_entropy):
    """Linear layer, with a test's function of its result and its loss."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, V)

        def forward(self, x):
            return then(self.linear(x))

    return Model(), (torch.randn(B, 4), torch.randint(V, (B,))), criterion


def centered(x):
    return x - x.mean(0)


def masked_mean(logits, labels):
    each, counted = f.cross_entropy(logits, labels, reduction="none"), labels != 3
    return (each * counted).sum() / counted.sum()


def against_others(x):
    return x @ x.t() @ x


def numbered(x):
    return x + torch.arange(len(x))[:, None]


def reordered(x):
    return x.flip(0) + x


@pytest.mark.parametrize(
    ("then", "criterion"),
    [
        (centered, f.cross_entropy),
        (against_others, f.cross_entropy),
        (numbered, f.cross_entropy),
        (reordered, f.cross_entropy),
        (lambda x: f.batch_norm(x, None, None, training=True), f.cross_entropy),
        (lambda x: x, masked_mean),
        (lambda x: x, lambda x, y: f.cross_entropy(x, torch.where(y == 3, -100, y))),
        (lambda x: x, lambda x, y: f.cross_entropy(x, y) ** 2),
    ],
)
def test_what_is_of_the_batch_as_a_whole_is_refused(then, criterion):
    model, batch, criterion = of_the_batch(then, criterion)
    module = recorded(model, batch, step(criterion))
    with pytest.raises(CompileError, match=r"test_rebatching.py:\d+: layer \w+: .* in 4 micro-ba"):
        rebatch(module, options_of(micro_batches=4), B)


def test_the_parts_share_a_minimized_value_of_the_weights():
    """The minimized value depends on weights only; the reported loss is another value."""
    with Tracer() as tracer:
        x = tracer.input("x", (B, D), "float32")
        with tracer.layer("layer", None):
            weight = tracer.parameter("weight", (D,), InitializerAttr.of(Distribution.ZEROS))
        minimized = SGD(0.1).minimize(sum_of(weight * weight))
        module = tracer.finish(RunMode.TRAIN, mean(x * weight), minimized, [])
    rebatch(module, options_of(micro_batches=4), B)
    (op,) = (op for op in module.ops if isinstance(op, MinimizeOp))
    assert isinstance(op.loss.owner, ShareOp)
    assert op.loss.owner.parts.value.data == 4


def edited(edit):
    def run(model, batch):
        model.zero_grad()
        loss = f.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        for parameter in model.parameters():
            edit(parameter)
        return loss

    return run


@pytest.mark.parametrize(
    "edit",
    [lambda p: p.grad.square_(), lambda p: p.grad.mul_(p.grad.sum())],
    ids=["squared", "scaled by itself"],
)
def test_a_gradient_that_is_no_sum_over_samples_is_refused(edit):
    model, batch, _ = of_the_batch(lambda x: x)
    module = recorded(model, batch, edited(edit))
    with pytest.raises(CompileError, match=r":\d+: layer \w+: .* on 2 systems"):
        rebatch(module, options_of(systems=2), B)
