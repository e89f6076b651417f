"""ctc_loss with constant targets, targets of the batch or of the script, as in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_rows import check_near, row  # noqa: E402
from torch.nn import functional as f  # noqa: E402

TIMES, CLASSES = 7, 5
TARGETS = torch.tensor([[1, 1, 2, 0], [4, -5, 9, 0], [0, 0, 0, 0], [3, 2, 3, 2]])
INPUTS, LABELS = torch.tensor([7, 6, 5, 7]), torch.tensor([3, 1, 0, 4])
FLAT = torch.cat([targets[:n] for targets, n in zip(TARGETS, LABELS, strict=True)])


def loss_of(targets=TARGETS, inputs=INPUTS, labels=LABELS, **options):
    """Loss of a layer's values [N, T, C], weighted if there is one per sample."""

    def function(x):
        return f.ctc_loss(x.log_softmax(-1).transpose(0, 1), targets, inputs, labels, **options)

    return row(function, TIMES, CLASSES)


def unbatched(x):
    return f.ctc_loss(x[1].log_softmax(-1), TARGETS[0, :3], torch.tensor(6), torch.tensor(3))


def of_any_values(x):
    """Values that are not a log-softmax, which PyTorch's gradient assumes."""
    return f.ctc_loss(-x.square().transpose(0, 1), TARGETS, INPUTS, LABELS, reduction="sum")


ROWS = {
    "mean": loss_of(),
    "sum": loss_of(reduction="sum"),
    "each": loss_of(reduction="none"),
    "blank": loss_of(torch.tensor([[0, 1], [4, 4], [1, 2], [0, 0]]), (7,) * 4, (2,) * 4, blank=3),
    "joined": loss_of(FLAT),
    "joined, of lists": loss_of(FLAT, INPUTS.tolist(), LABELS.tolist(), reduction="none"),
    "too long": loss_of(inputs=torch.tensor([3, 6, 0, 5]), zero_infinity=True),
    "too long, each": loss_of(
        inputs=torch.tensor([3, 0, 0, 4]), zero_infinity=True, reduction="none"
    ),
    "no labels": loss_of(TARGETS[:, :0], labels=(0,) * 4, inputs=(7,) * 4),
    "unbatched": row(unbatched, TIMES, CLASSES),
    "of any values": row(of_any_values, TIMES, CLASSES),
}  # fmt: skip


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(ROWS, tmp_path)
