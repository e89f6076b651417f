"""Writes into views that forward makes, and into what there are views of, beside PyTorch's."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from torch import nn  # noqa: E402


def slices(x):
    y = x * 1
    y[:, 0] = 0
    y[:, :, 1:3] *= 2
    y[:, -1, ::2] += x[:, 0, ::2]
    return y


def through_several_views(x):
    y = x * 1
    y.view(4, 18)[:, 3:6].mul_(3)
    y.transpose(1, 2)[:, 2].add_(x[:, :, 0])
    y.unsqueeze(1)[:, 0, 1].fill_(0.5)
    y[:, :, :3].copy_(y[:, :, 3:] * 2)
    return y


def shifted_right(x):
    """As T5 and BART shift their labels."""
    y = x.new_zeros(x.shape)
    y[:, 1:] = x[:, :-1].clone()
    y[:, 0] = 0.25
    return y


def views_of_what_is_written(x):
    y = x * 1
    column, rest = y[:, :, 0], y[:, 1:]
    y.mul_(2)
    column.add_(1)
    return y + rest.sum(1, True) + column[..., None]


def diagonals(x):
    y = x[:, :, :3] * 1
    y.diagonal(dim1=1, dim2=2).zero_()
    y.permute(0, 2, 1)[:, 1] = x[:, :, 5]
    return y


def circular_padding(x):
    return nn.functional.pad(x, (2, 1), mode="circular")


def zeros_of_forward(x):
    """Tensors that forward makes, and views of them from before and after the first write."""
    y, sums = torch.zeros(4, 3, 6).double(), torch.tensor(0.5).double()
    first, rows = y[:, 0], torch.arange(12).view(4, 3).double()
    rows[1:, torch.tensor([0, 2])] += x[1:, :2, 0]
    for place in range(3):
        y[:, place] = x[:, place] * 2
        sums += x[:, place].mean()
    y[:, 0].mul_(3)
    y.view(-1)[5::7] = y.sum(0)[0, 0]
    return y * sums + first[:, None] + rows.cumsum(1)[..., None]


def returned_from_forward(x):
    y = torch.ones(4, 3)
    y = y.double()
    y[:, 1:].add_(x[:, 0, :2])
    return y


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self.linear(x))


def step(model, batch):
    x, slopes = batch
    model.zero_grad()
    out = model(x)
    loss = (out * slopes[: out.numel()].view(out.shape)).sum() / 7
    loss.backward()
    return loss


FUNCTIONS = (
    slices,
    through_several_views,
    shifted_right,
    views_of_what_is_written,
    diagonals,
    circular_padding,
    zeros_of_forward,
    returned_from_forward,
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_write_into_a_view_is_pytorchs(tmp_path, function):
    torch.manual_seed(0)
    batch = torch.randn(4, 3, 6).double(), torch.randn(200).double()
    Beside(Function(function).double(), batch, step, tmp_path).check(1e-12, 1e-11)
