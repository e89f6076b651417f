"""Losses of labels, of classes and of values."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from support.torch_rows import check_near, named, row  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402


def target(x, classes=5):
    return torch.arange(len(x)) % classes


def probabilities(x):
    return torch.linspace(0.05, 0.95, x.numel(), dtype=x.dtype).view(x.shape)


def by_weights(x, **options):
    weight = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0], dtype=x.dtype)
    return f.cross_entropy(x, target(x), weight, **options)


def losses_by_label(x):
    labels = torch.tensor([[1, 0, 2, 2, -100, 1], [0, 0, 1, 2, 1, -100]]).repeat(2, 1)
    each = nn.functional.nll_loss(
        x, labels, torch.tensor([0.5, 2.0, 1.0]).double(), reduction="none"
    )
    several = torch.tensor([[1, 4, -1, 2, -1, 1], [5, -1, 0, 0, 0, 0]]).repeat(2, 1)
    apart = nn.functional.multilabel_margin_loss(x[:, 0], several, reduction="none")
    mean = nn.functional.multilabel_margin_loss(x[:, 1], several)
    return each + apart[:, None] + mean


NEAR = {
    **named(losses_by_label),
    "bce_weighted": row(
        lambda x: f.binary_cross_entropy_with_logits(
            x, probabilities(x), probabilities(x) + 1, pos_weight=torch.arange(1.0, 6.0).to(x)
        ),
        5,
    ),
    "bce": row(lambda x: f.binary_cross_entropy(torch.sigmoid(x), probabilities(x)), 5),
    "mse_each": row(lambda x: f.mse_loss(x, probabilities(x), reduction="none"), 5),
    "smooth_l1": row(lambda x: f.smooth_l1_loss(x, probabilities(x), beta=0.5), 5),
    "smooth_l1_sum": row(lambda x: f.smooth_l1_loss(x, probabilities(x), reduction="sum"), 5),
    "huber": row(lambda x: f.huber_loss(x, probabilities(x), delta=0.7), 5),
    "kl_div": row(
        lambda x: f.kl_div(f.log_softmax(x, -1), probabilities(x), reduction="batchmean"), 5
    ),
    "kl_div_log": row(
        lambda x: f.kl_div(
            f.log_softmax(x, -1),
            f.log_softmax(probabilities(x), -1),
            reduction="sum",
            log_target=True,
        ),
        5,
    ),
    "cosine": row(lambda x: f.cosine_similarity(x, probabilities(x)), 5),
    "cosine_loss": row(
        lambda x: f.cosine_embedding_loss(x, probabilities(x), torch.ones(len(x)).to(x)), 5
    ),
    "triplet": row(lambda x: f.triplet_margin_loss(x, x * 0.5, probabilities(x)), 5),
    "poisson": row(lambda x: f.poisson_nll_loss(x, probabilities(x)), 5),
    "gaussian": row(lambda x: f.gaussian_nll_loss(x, probabilities(x), probabilities(x)), 5),
    "soft_margin": row(lambda x: f.soft_margin_loss(x, torch.ones_like(x)), 5),
    "cross_entropy_weighted": row(by_weights, 5),
    "cross_entropy_weighted_sum": row(lambda x: by_weights(x, reduction="sum"), 5),
    "cross_entropy_weighted_ignored": row(lambda x: by_weights(x, ignore_index=2), 5),
    "cross_entropy_weighted_smoothed": row(lambda x: by_weights(x, label_smoothing=0.1), 5),
    "cross_entropy_weighted_each": row(lambda x: by_weights(x, reduction="none"), 5),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)


def of_labels(**options):
    def criterion(out, labels):
        return f.cross_entropy(out, labels, **options)

    return criterion


LOSSES = {
    "mean": of_labels(ignore_index=2),
    "smoothed": of_labels(label_smoothing=0.1),
    "summed": of_labels(reduction="sum"),
    "each, smoothed": lambda out, labels: (
        of_labels(reduction="none", ignore_index=2, label_smoothing=0.2)(out, labels) ** 2
    ).mean(),
    "each": lambda out, labels: (
        of_labels(reduction="none", ignore_index=2)(out, labels) ** 2
    ).mean(),
    "last": lambda out, labels: of_labels()(out.view(2, 3, 5).transpose(1, 2), labels.view(2, 3)),
    "nll of rows": lambda out, labels: f.nll_loss(f.log_softmax(out, 1)[1:4], labels[1:4]),
    "nll": lambda out, labels: f.nll_loss(f.log_softmax(out, 1), labels),
    "probabilities": lambda out, labels: f.cross_entropy(
        out, f.one_hot(torch.arange(6) % 5, 5).double()
    ),
    "mse": lambda out, labels: f.mse_loss(out, f.one_hot(torch.arange(6) % 5, 5).double()),
    "l1": lambda out, labels: f.l1_loss(out, torch.linspace(0, 1, 5).double().expand(6, 5)),
    "binary": lambda out, labels: f.binary_cross_entropy_with_logits(
        out, torch.linspace(0, 1, 5).double().expand(6, 5)
    ),
}


def test_losses_of_the_batchs_labels_are_pytorchs(tmp_path):
    """One layer for each loss, all in one step."""
    torch.manual_seed(0)
    batch = torch.randn(6, 4).double(), torch.tensor([0, 4, 2, 1, 2, 3])

    def step(model, batch):
        model.zero_grad()
        loss = sum(LOSSES[name](layer(batch[0]), batch[1]) for name, layer in model.items())
        loss.backward()
        return loss

    model = nn.ModuleDict({name: nn.Linear(4, 5) for name in LOSSES}).double()
    Beside(model, batch, step, tmp_path).check(1e-12, 1e-11)
