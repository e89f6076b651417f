"""Modules and functions that users write with: beside PyTorch's, or refused by name."""

import re

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.pytorch.errors import CaptureError  # noqa: E402

ROWS = 4


class Calls(nn.Module):
    """A function of a linear layer's result, with its modules."""

    def __init__(self, function, width, modules):
        super().__init__()
        self.linear, self.function = nn.Linear(width, width), function
        self.inner = nn.ModuleList(modules)

    def forward(self, x):
        return self.function(self.linear(x), *self.inner)


def of(function, *shape, modules=()):
    """A row of the table: a function of values of this shape a sample, and modules."""
    return function, shape, modules


def ids(x):
    return torch.arange(x.shape[0] * 3).view(-1, 3) % 7


def target(x, classes=5):
    return torch.arange(len(x)) % classes


def probabilities(x):
    return torch.linspace(0.05, 0.95, x.numel(), dtype=x.dtype).view(x.shape)


def infinities(x):
    """Some values of a row are none, and some infinite."""
    places = torch.arange(x.shape[-1]).expand(x.shape)
    x = x.detach().masked_fill(places == 0, torch.nan)
    return x.masked_fill(places == 1, torch.inf).masked_fill(places == 2, -torch.inf)


def self_attention(x, attention, **options):
    return attention(x, x, x, need_weights=False, **options)[0]


def causal(x):
    mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
    return x.masked_fill(mask[None, :, :1], 0.5)


def weighted(x, **options):
    weight = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0], dtype=x.dtype)
    return f.cross_entropy(x, target(x), weight, **options)


def heads(x, count):
    return x.view(len(x), x.shape[1], count, -1).transpose(1, 2)


def grouped(x):
    q, kv = heads(x, 4), heads(x[..., :4], 2)
    return f.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)


class TrainedMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        x = x[:, None]
        return f.scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


WORKS = {
    "bce_with_logits": of(lambda x: f.binary_cross_entropy_with_logits(x, probabilities(x)), 5),
    "bce_weighted": of(
        lambda x: f.binary_cross_entropy_with_logits(
            x, probabilities(x), probabilities(x) + 1, pos_weight=torch.arange(1.0, 6.0).to(x)
        ),
        5,
    ),
    "bce": of(lambda x: f.binary_cross_entropy(torch.sigmoid(x), probabilities(x)), 5),
    "mse": of(lambda x: f.mse_loss(x, probabilities(x)), 5),
    "mse_each": of(lambda x: f.mse_loss(x, probabilities(x), reduction="none"), 5),
    "l1": of(lambda x: f.l1_loss(x, probabilities(x)), 5),
    "smooth_l1": of(lambda x: f.smooth_l1_loss(x, probabilities(x), beta=0.5), 5),
    "smooth_l1_sum": of(lambda x: f.smooth_l1_loss(x, probabilities(x), reduction="sum"), 5),
    "huber": of(lambda x: f.huber_loss(x, probabilities(x), delta=0.7), 5),
    "nll": of(lambda x: f.nll_loss(f.log_softmax(x, -1), target(x)), 5),
    "kl_div": of(
        lambda x: f.kl_div(f.log_softmax(x, -1), probabilities(x), reduction="batchmean"), 5
    ),
    "kl_div_log": of(
        lambda x: f.kl_div(
            f.log_softmax(x, -1),
            f.log_softmax(probabilities(x), -1),
            reduction="sum",
            log_target=True,
        ),
        5,
    ),
    "cosine": of(lambda x: f.cosine_similarity(x, probabilities(x)), 5),
    "cosine_loss": of(
        lambda x: f.cosine_embedding_loss(x, probabilities(x), torch.ones(len(x)).to(x)), 5
    ),
    "triplet": of(lambda x: f.triplet_margin_loss(x, x * 0.5, probabilities(x)), 5),
    "poisson": of(lambda x: f.poisson_nll_loss(x, probabilities(x)), 5),
    "gaussian": of(lambda x: f.gaussian_nll_loss(x, probabilities(x), probabilities(x)), 5),
    "soft_margin": of(lambda x: f.soft_margin_loss(x, torch.ones_like(x)), 5),
    "cross_entropy_weighted": of(weighted, 5),
    "cross_entropy_weighted_sum": of(lambda x: weighted(x, reduction="sum"), 5),
    "cross_entropy_weighted_ignored": of(lambda x: weighted(x, ignore_index=2), 5),
    "cross_entropy_weighted_smoothed": of(lambda x: weighted(x, label_smoothing=0.1), 5),
    "cross_entropy_weighted_each": of(lambda x: weighted(x, reduction="none"), 5),
    "embedding_padded": of(
        lambda x, table: table(ids(x)).mean(1) * x, 5, modules=[nn.Embedding(7, 5, padding_idx=3)]
    ),
    "instance_norm": of(lambda x, norm: norm(x), 4, 6, modules=[nn.InstanceNorm1d(4, affine=True)]),
    "instance_norm_2d": of(lambda x, norm: norm(x) * x, 3, 4, 5, modules=[nn.InstanceNorm2d(3)]),
    "group_norm": of(lambda x, norm: norm(x), 4, 6, modules=[nn.GroupNorm(2, 4)]),
    "batch_norm_1d": of(lambda x, norm: norm(x), 4, 6, modules=[nn.BatchNorm1d(4)]),
    "batch_norm_rows": of(lambda x, norm: norm(x), 6, modules=[nn.BatchNorm1d(6)]),
    "layer_norm": of(lambda x, norm: norm(x), 4, 6, modules=[nn.LayerNorm([4, 6])]),
    "attention": of(self_attention, 3, 8, modules=[nn.MultiheadAttention(8, 2, batch_first=True)]),
    "attention_masked": of(
        lambda x, a: self_attention(
            x, a, attn_mask=nn.Transformer.generate_square_subsequent_mask(3).to(x)
        ),
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, batch_first=True)],
    ),
    "attention_padded": of(
        lambda x, a: self_attention(
            x, a, key_padding_mask=torch.tensor([[False, False, True]]).expand(len(x), -1)
        ),
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, batch_first=True)],
    ),
    "attention_weights": of(
        lambda x, a: a(x, x, x)[0], 3, 8, modules=[nn.MultiheadAttention(8, 2, batch_first=True)]
    ),
    "attention_grouped": of(grouped, 3, 8),
    "attention_trained_mask": of(lambda x, a: a(x), 3, 8, modules=[TrainedMask()]),
    "encoder": of(
        lambda x, e: e(x),
        3,
        8,
        modules=[nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)],
    ),
    "encoder_first": of(
        lambda x, e: e(
            x, is_causal=True, src_mask=nn.Transformer.generate_square_subsequent_mask(3).to(x)
        ),
        3,
        8,
        modules=[
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        ],
    ),
    "decoder": of(
        lambda x, d: d(x, x * 0.5),
        3,
        8,
        modules=[nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)],
    ),
    "conv1d": of(lambda x, c: c(x), 4, 6, modules=[nn.Conv1d(4, 3, 3, padding=1)]),
    "conv1d_same": of(lambda x, c: c(x), 4, 6, modules=[nn.Conv1d(4, 3, 3, padding="same")]),
    "conv2d_depthwise": of(lambda x, c: c(x), 4, 6, 6, modules=[nn.Conv2d(4, 4, 3, groups=4)]),
    "max_pool_1d": of(lambda x: f.max_pool1d(x, 2), 4, 6),
    "avg_pool_1d": of(lambda x: f.avg_pool1d(x, 2), 4, 6),
    "max_pool_ceil": of(lambda x: f.max_pool2d(x, 2, ceil_mode=True), 2, 5, 6),
    "max_pool_ceil_padded": of(lambda x: f.max_pool2d(x, 3, 2, 1, ceil_mode=True), 2, 6, 4),
    "max_pool_ceil_dilated": of(
        lambda x: f.max_pool2d(x, 2, (2, 3), dilation=2, ceil_mode=True), 2, 6, 7
    ),
    "avg_pool_ceil": of(lambda x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True), 2, 6, 7),
    "avg_pool_ceil_pixels": of(
        lambda x: f.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False), 2, 6, 7
    ),
    "avg_pool_divisor": of(lambda x: f.avg_pool2d(x, 2, divisor_override=3), 2, 4, 6),
    "adaptive": of(lambda x: f.adaptive_avg_pool2d(x, 2), 2, 4, 6),
    "adaptive_one": of(lambda x: f.adaptive_avg_pool1d(x, 1), 4, 6),
    "pixel_shuffle": of(lambda x: f.pixel_shuffle(x, 2), 4, 3, 3),
    "pad": of(lambda x: f.pad(x, (1, 2, 0, 1)), 2, 3, 4),
    "pad_value": of(lambda x: f.pad(x, (1, 1), value=0.5), 2, 3),
    "one_hot": of(lambda x: x * f.one_hot(target(x), 5), 5),
    "normalize": of(lambda x: f.normalize(x), 5),
    "einsum": of(lambda x: torch.einsum("bij,bkj->bik", x, x), 3, 4),
    "einsum_heads": of(lambda x: torch.einsum("bhid,bhjd->bhij", heads(x, 2), heads(x, 2)), 3, 8),
    "masked_fill": of(causal, 3, 4),
    "tril": of(lambda x: torch.tril(x) + torch.triu(x, 1) * 2, 3, 4),
    "roll": of(lambda x: x.roll(1, 1), 3, 4),
    "repeat": of(lambda x: x.repeat(1, 2), 4),
    "repeat_interleave": of(lambda x: x.repeat_interleave(2, 1), 4),
    "chunk_cat": of(lambda x: torch.cat(x.chunk(2, -1)[::-1], -1), 6),
    "glu": of(lambda x: f.glu(x), 6),
    "prelu": of(lambda x, p: p(x), 4, 5, modules=[nn.PReLU()]),
    "gru_cell": of(lambda x, c: c(x), 5, modules=[nn.GRUCell(5, 4)]),
    "rnn_cell": of(lambda x, c: c(x), 5, modules=[nn.RNNCell(5, 4)]),
    "gru": of(lambda x, r: r(x)[0], 3, 5, modules=[nn.GRU(5, 4, batch_first=True)]),
    "gru_both_ways": of(
        lambda x, r: r(x)[0], 3, 5, modules=[nn.GRU(5, 4, 2, bidirectional=True, batch_first=True)]
    ),
    "rnn": of(lambda x, r: r(x)[0], 3, 5, modules=[nn.RNN(5, 4, batch_first=True)]),
    "rnn_relu": of(
        lambda x, r: r(x)[0], 3, 5, modules=[nn.RNN(5, 4, nonlinearity="relu", batch_first=True)]
    ),
    "batch_norm_of_last": of(
        lambda x, r, norm: norm(r(x)[0][:, -1]),
        3,
        5,
        modules=[nn.GRU(5, 4, batch_first=True), nn.BatchNorm1d(4)],
    ),
    "batch_norm_of_some": of(lambda x, norm: norm(x[:3]), 5, modules=[nn.BatchNorm1d(5)]),
    "lstm": of(lambda x, r: r(x)[0], 3, 5, modules=[nn.LSTM(5, 4, batch_first=True)]),
    "logsumexp": of(lambda x: x.logsumexp(1) + x.softmax(1).log().sum(1), 4),
    "clip": of(lambda x: x.clip(-0.5, 0.5) + torch.minimum(x, x * 2), 4),
    "lerp": of(lambda x: torch.lerp(x, x * x, 0.3), 4),
    "weight_norm": of(
        lambda x, w: w(x), 5, modules=[nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))]
    ),
    "outer": of(lambda x: x[:, :, None] * x[:, None, :], 4),
    "largest": of(lambda x: x * x.max() + x.min(), 5),
    "largest_equals": of(lambda x: x * x.clamp(-0.1, 0.1).max() + x.clamp(-0.1, 0.1).min(), 5),
    "largest_equals_of_rows": of(lambda x: x * x.clamp(-0.1, 0.1).amax(1, keepdim=True), 5),
    "no_numbers": of(
        lambda x: torch.where(infinities(x).isfinite(), x, 2) * infinities(x).nan_to_num(3, 4, 5), 5
    ),
    "topk": of(lambda x: x.topk(2).values * x.topk(2, largest=False).indices, 5),
    "topk_of_columns": of(lambda x: x.topk(2, 1).values, 3, 4),
    "topk_with_infinities": of(lambda x: x * infinities(x).topk(3).indices.sum(1)[:, None], 5),
    "sort": of(lambda x: x.sort(1).values, 5),
    "sort_descending": of(lambda x: x * x.sort(descending=True).indices, 5),
    "argsort": of(lambda x: x * x.argsort(), 5),
    "argmax": of(lambda x: x * f.one_hot(x.argmax(1), 5), 5),
    "flatten": of(lambda x, a, b: b(a(x)), 6, modules=[nn.Unflatten(1, (2, 3)), nn.Flatten()]),
}
#: What is not there, and the operator that the error names.
REFUSED = {
    "instance_norm": (
        "track_running_stats",
        of(lambda x, norm: norm(x), 4, 6, modules=[nn.InstanceNorm1d(4, track_running_stats=True)]),
    ),
    "cumsum": ("aten.cumsum.default", of(lambda x: x.expand(-1, 2500).cumsum(1), 1)),
    "topk": ("aten.topk.default", of(lambda x: x.topk(33).values, 40)),
    "sort": ("aten.sort.default", of(lambda x: x.sort(1).values, 40)),
    "alpha_dropout": (
        "aten.bernoulli_.float",
        of(lambda x, d: d(x), 4, 3, 3, modules=[nn.AlphaDropout(0.3)]),
    ),
    "bag": (
        "aten._embedding_bag.default",
        of(lambda x, bag: bag(ids(x)) * x, 5, modules=[nn.EmbeddingBag(7, 5, mode="mean")]),
    ),
}


def padded(x):
    """Keys that nobody looks at: the last of every other sample."""
    return torch.zeros(x.shape[:2], dtype=torch.bool).index_fill(1, torch.tensor([2]), True) & (
        torch.arange(len(x))[:, None] % 2 == 1
    )


def later(x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def weighted_attention(x, a):
    out, weights = a(x, x, x, key_padding_mask=padded(x), attn_mask=later(x))
    return out * weights.sum((1, 2))[:, None, None]


def places_first(x, module):
    return module(x.transpose(0, 1), x.transpose(0, 1)).transpose(0, 1)


def joined_heads(x):
    """Attention and dropout of [B H, T, D], of [T B, D], and of axes with the samples between."""
    rows, length, _ = x.shape
    h = x.view(rows, length, 2, -1).transpose(1, 2).flatten(0, 1)
    h = f.scaled_dot_product_attention(h, h, h, dropout_p=0.2, is_causal=True)
    x = x + h.view(rows, 2, length, -1).transpose(1, 2).flatten(2)
    y = f.dropout(x.transpose(0, 1).flatten(0, 1), 0.3).view(length, rows, -1)
    y = y.view(length, rows, 2, -1).transpose(0, 2)  # [heads, samples, places, features]
    y = f.scaled_dot_product_attention(y, y, y, dropout_p=0.2).permute(1, 2, 0, 3).flatten(2)[None]
    return x + y[0] + f.dropout1d(x, 0.5)


def encoder(**options):
    return nn.TransformerEncoderLayer(8, 2, 16, 0.3, **options)


#: With dropout: by the same masks as the interpreter of the recording.
DROPPING = {
    "attention": of(
        lambda x, a: a(x, x, x, need_weights=False)[0],
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, 0.3, batch_first=True)],
    ),
    "attention_places_first": of(
        lambda x, a: places_first(x, lambda q, k: a(q, k, k, key_padding_mask=padded(x))[0]),
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, 0.3)],
    ),
    "attention_weights": of(
        weighted_attention, 3, 8, modules=[nn.MultiheadAttention(8, 2, 0.3, batch_first=True)]
    ),
    "encoder": of(
        lambda x, e: e(x, src_key_padding_mask=padded(x)),
        3,
        8,
        modules=[nn.TransformerEncoder(encoder(batch_first=True), 2, enable_nested_tensor=False)],
    ),
    "decoder_places_first": of(
        places_first, 3, 8, modules=[nn.TransformerDecoderLayer(8, 2, 16, 0.3)]
    ),
    "transformer": of(
        lambda x, t: t(x, x * 0.5, tgt_mask=later(x), tgt_is_causal=True),
        3,
        8,
        modules=[nn.Transformer(8, 2, 1, 1, 16, 0.3, batch_first=True)],
    ),
    "lstm": of(
        lambda x, r: r(x)[0] + r(x)[1][1].sum((0, 2))[:, None, None],
        3,
        5,
        modules=[nn.LSTM(5, 4, 2, dropout=0.5, batch_first=True, bidirectional=True)],
    ),
    "gru_places_first": of(
        lambda x, r: r(x.transpose(0, 1))[0].transpose(0, 1),
        3,
        5,
        modules=[nn.GRU(5, 4, 3, dropout=0.5)],
    ),
    "joined_heads": of(joined_heads, 3, 8),
}


def step(model, batch):
    x, _ = batch
    model.zero_grad()
    out = model(x)
    slopes = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).cos().view(out.shape)
    loss = (out * slopes).sum() / 7
    loss.backward()
    return loss


def built(row):
    function, shape, modules = row
    torch.manual_seed(0)
    for module in modules:
        for parameter in module.parameters():  # the same numbers whichever tests run before
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    model = Calls(function, shape[-1], modules).double()
    return model, (torch.randn(ROWS, *shape).double(), torch.zeros(ROWS).long())


@pytest.mark.parametrize("name", WORKS)
def test_loss_and_gradients_are_pytorchs(tmp_path, name):
    """The interpreter's, too; to rounding, as functions of PyTorch's may add up in any order."""
    model, batch = built(WORKS[name])
    beside = Beside(model, batch, step, tmp_path)
    (loss, gradients), (again, interpreted) = beside.theirs(), beside.interpreted()
    compiled, ours = beside.ours()
    assert [again.item(), compiled] == pytest.approx([loss.item()] * 2, rel=1e-10, abs=1e-12)
    assert set(interpreted) == set(gradients) <= set(ours)
    for name, gradient in gradients.items():
        for found in (interpreted[name], ours[name]):
            torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_of_samples_in_every_layout(tmp_path, name):
    """The program is the interpreter's, which has the same masks and PyTorch's own gradients."""
    model, batch = built(DROPPING[name])
    beside = Beside(model, batch, step, tmp_path)
    loss, gradients = beside.interpreted()
    compiled, ours = beside.ours()
    assert compiled == pytest.approx(loss.item(), rel=1e-10, abs=1e-12)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(ours[parameter], gradient, rtol=1e-9, atol=1e-11)
    model.eval()
    assert beside.theirs()[0] != pytest.approx(loss.item(), rel=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused_by_its_line_and_name(tmp_path, name):
    operator, row = REFUSED[name]
    model, batch = built(row)
    with pytest.raises(CaptureError, match=f"test_modules.py:[0-9]+: .*{re.escape(operator)}"):
        Beside(model, batch, step, tmp_path)
