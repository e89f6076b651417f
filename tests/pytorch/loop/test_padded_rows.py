"""Rows selected by a mask of the batch, in varying numbers: few programs serve all."""

import json

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.executable.executable import load  # noqa: E402
from csrun.pytorch.record.rows.padded import padded_count  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_texts", "quick_builds")

SIZE, LENGTH, CLASSES = 4, 6, 4
COUNTS = (13, 15, 17, 14, 18, 16, 20, 13, 19, 15, 21, 24)


class Tokens(Kit):
    """Sequences of tokens and labels with a mask, for any model."""

    def __init__(self, model, counts=COUNTS):
        super().__init__(model)
        self.model = self.model[0]
        generator = torch.Generator().manual_seed(5)
        rows = SIZE * len(counts)
        x = torch.randn(rows, LENGTH, 6, generator=generator, dtype=torch.float64)
        y = torch.randint(CLASSES, (rows, LENGTH), generator=generator)
        mask = torch.zeros(rows, LENGTH, dtype=torch.bool)
        for batch, count in enumerate(counts):
            chosen = torch.randperm(SIZE * LENGTH, generator=generator)[:count]
            mask[SIZE * batch : SIZE * (batch + 1)].view(-1)[chosen] = True
        self.train = DataLoader(TensorDataset(x, y, mask), SIZE)

    def passes(self, loss_of, count=2):
        losses = []
        for _ in range(count):
            for x, y, mask in self.train:
                found = loss_of(self.model, x, y, mask)
                loss, *others = found if isinstance(found, tuple) else (found,)
                losses += [self.update(loss), *others]
        return losses


def programs(folder):
    return len(list(folder.glob("tfcs_*")))


def recorded_steps(folder):
    found = json.loads((folder / "performance" / "performance.json").read_text())
    return found["recorded_steps"]


class Head(nn.Module):
    """Module that computes its loss by `loss_of` from the rows of a mask."""

    def __init__(self, loss_of):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 9), nn.LayerNorm(9)
        self.last, self.loss_of = nn.Linear(9, CLASSES), loss_of

    def forward(self, x, y, mask):
        h = self.first(x).tanh()
        return self.loss_of(self, h, y, mask)


def of_head(self, h, y, mask):
    """Head computed on selected rows only."""
    return functional.cross_entropy(self.last(functional.gelu(self.norm(h[mask]))), y[mask])


def of_logits(self, h, y, mask):
    """One logit per token, as in ELECTRA."""
    logits = self.last(h)[..., 0]
    return nn.BCEWithLogitsLoss()(logits[mask == 1], (y[mask == 1] > 1).to(h.dtype))


def of_squares(self, h, y, mask):
    out, wanted = self.last(h)[mask], h[mask][:, :CLASSES].detach()
    return functional.mse_loss(out, wanted) + functional.smooth_l1_loss(out, wanted)


def of_means(self, h, y, mask):
    each = functional.cross_entropy(self.last(h).transpose(1, 2), y, reduction="none")
    return each[mask].mean() + self.last(h)[mask].softmax(1).log().mean(0).pow(2).sum()


def of_sums(self, h, y, mask):
    logarithms = self.last(h)[mask].log_softmax(-1)
    return functional.nll_loss(logarithms, y[mask], reduction="sum") / 20


def of_probabilities(self, h, y, mask):
    chances = torch.sigmoid(self.last(h)[mask][:, 1])
    return functional.binary_cross_entropy(chances, (y[mask] == 1).to(h.dtype))


@pytest.mark.parametrize(
    "loss_of", [of_head, of_logits, of_squares, of_means, of_sums, of_probabilities]
)
def test_few_programs_serve_all_counts_of_rows(tmp_path, loss_of):
    beside(
        lambda kit: kit.passes(lambda model, *batch: model(*batch)), tmp_path, Head(loss_of),
        kit=Tokens, settings={"save_checkpoints_steps": 7},
    )  # fmt: skip
    assert not recorded_steps(tmp_path)
    padded = {padded_count(count, SIZE * LENGTH) for count in COUNTS[1:]}
    assert programs(tmp_path) == 1 + len(padded)


def test_the_first_program_describes_the_others(tmp_path):
    """Only it has the page and the texts of passes; all have what a run reads."""
    kit = Tokens(Head(of_sums), counts=(13, 15, 24))
    with kit.session(tmp_path):
        kit.passes(lambda model, *batch: model(*batch), count=1)
    described = [(path / "compile_report.html").exists() for path in tmp_path.glob("tfcs_*")]
    assert sorted(described) == [False, False, True]
    for path in tmp_path.glob("tfcs_*"):
        assert load(path).program
        assert (path / "compile_report.txt").exists()


class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, CLASSES)

    def forward(self, x):
        return self.last(self.first(x).tanh())


def of_loop(model, x, y, mask):
    return functional.cross_entropy(model(x)[mask], y[mask])


def with_metrics(model, x, y, mask):
    """Metrics of the selected rows: their number, and computed values."""
    rows, labels = model(x)[mask], y[mask]
    hits = (rows.argmax(1) == labels).sum()
    return functional.cross_entropy(rows, labels), len(rows), hits, rows.detach().sum()


@pytest.mark.parametrize("loss_of", [of_loop, with_metrics])
def test_the_loop_selects_the_rows(tmp_path, loss_of):
    beside(lambda kit: kit.passes(loss_of), tmp_path, Outputs(), kit=Tokens)
    assert not recorded_steps(tmp_path)
    padded = {padded_count(count, SIZE * LENGTH) for count in COUNTS[1:]}
    assert programs(tmp_path) <= 1 + len(padded)


def by_size(self, h, y, mask):
    rows = self.last(h)[mask]
    return rows.pow(2).mean() if len(rows) > 16 else rows.abs().sum()


def in_order(self, h, y, mask):
    return self.last(h)[mask].cumsum(0).pow(2).mean() / 100


def centered(self, h, y, mask):
    rows = self.last(h)[mask]
    return (rows - rows.mean(0)).pow(2).mean() + rows.std()


@pytest.mark.parametrize("loss_of", [by_size, in_order, centered])
def test_what_is_not_by_row_has_the_numbers_of_pytorch(tmp_path, loss_of):
    counts = (13, 15, 13, 20, 24, 15, 13)
    beside(
        lambda kit: kit.passes(lambda model, *batch: model(*batch)), tmp_path, Head(loss_of),
        kit=Tokens, counts=counts,
    )  # fmt: skip


def test_a_batch_without_rows_is_not_padded(tmp_path):
    def summed(self, h, y, mask):
        return self.last(h)[mask].pow(2).sum() / 100 + h.mean()

    beside(
        lambda kit: kit.passes(lambda model, *batch: model(*batch)), tmp_path, Head(summed),
        kit=Tokens, counts=(13, 0, 15, 24, 0, 1, 14),
    )  # fmt: skip


def by_pairs(self, h, y, mask):
    """Contrastive loss in which each row is its own class."""
    rows = self.last(h)[mask]
    labels = torch.arange(len(rows))
    return functional.cross_entropy(rows @ rows.T, labels, reduction="sum") + h.mean()


def by_partition(self, h, y, mask):
    rows = self.last(h)[mask]
    return (rows @ rows.T).logsumexp(1).sum() + h.mean()


@pytest.mark.parametrize("loss_of", [by_pairs, by_partition])
def test_pairs_of_rows_where_a_batch_has_none(tmp_path, loss_of):
    beside(
        lambda kit: kit.passes(lambda model, *batch: model(*batch)), tmp_path, Head(loss_of),
        kit=Tokens, counts=(5, 0, 3, 0, 1),
    )  # fmt: skip


@pytest.mark.parametrize("most", [1, 2, 7, 24, 1000])
def test_at_most_half_of_the_rows_are_padding(most):
    sizes = {count: padded_count(count, most) for count in range(1, most + 1)}
    assert all(count <= size <= min(most, 2 * count) for count, size in sizes.items())
    assert len(set(sizes.values())) <= 2 * most.bit_length()
