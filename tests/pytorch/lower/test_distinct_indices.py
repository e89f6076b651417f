"""Writes to indices that cannot repeat."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class Writing(nn.Module):
    """Network with a function of a layer's output and the batch."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 6), nn.Linear(6, 4), function

    def forward(self, x):
        h = self.first(x)
        return self.last(self.function(h, h * 0.1, x))


def sorted_and_back(h, out, x):
    order = x.flatten().sort()[1]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return h.flatten()[order].cumsum(0)[back].view(h.shape)


def rows_in_order(h, out, x):
    out[x[:, 0].argsort()] = h
    return out.index_copy(0, x[:, 1].argsort(), h)


def columns_in_order(h, out, x):
    out = out.index_copy(1, x[0].argsort(), h)
    return out.index_copy(-1, torch.tensor([4, 1]), h[:, :2])


def best_rows(h, out, x):
    best = x[:, 0].topk(3)[1]
    out[best] = h[best]
    return out


def best_of_each_row(h, out, x):
    out[torch.arange(8)[:, None], x.topk(2, 1)[1]] = h[:, :2]
    return out


def one_of_each_row(h, out, x):
    out[torch.arange(8), x.argmax(1)] = h[:, 0]
    return out


def rows_of_unique(h, out, x):
    rows = (2 * x[:, 0]).long().abs().clamp(max=5).unique()
    out[rows] = h[rows]
    return out


def rows_of_unique_remainders(h, out, x):
    rows = ((3 * x[:, 0]).long() % 8).unique()
    out[rows] = h[rows]
    rows = (3 * x[:, 1]).long().clamp(0, 7).unique()
    out[rows] = h[rows]
    return out


def rows_of_unique_with_negative_ones(h, out, x):
    rows = (2 * x[:, 0]).long().clamp(-3, 4).unique()
    out[rows] = h[: len(rows)]
    return out


def rows_of_a_permutation(h, out, x):
    generator = torch.Generator().manual_seed(len(h))
    rows, columns = (torch.randperm(8, generator=generator) for _ in range(2))
    columns = columns[:6]
    out[rows] = h
    out[rows[:6], torch.arange(6)] = h[0]
    return out.index_put((columns,), h[:6])


def places_of_a_mask(h, out, x):
    rows, columns = (x > 0).nonzero(as_tuple=True)
    out[rows, columns] = h[rows, columns].tanh()
    columns, rows = torch.where(x.t() > 1)
    out[rows, columns] = h[rows, columns] * 2
    return out


def columns_of_nonzero(h, out, x):
    places, rows = (x > 0).nonzero(), (x[:, 0] > 0).nonzero()
    out[places[:, 0], places[:, 1]] = h[places[:, 0], places[:, 1]] * 2
    out[rows.squeeze(1)] = h[rows.flatten()]
    return out


def masks(h, out, x):
    of_batch, of_columns = x > 0, torch.arange(6) % 2 == 0
    out[of_batch] = h[of_batch] * 3
    out[:, of_columns] = h[:, of_columns]
    out[x[:, 1] > 0, :3] = h[x[:, 1] > 0, 3:]
    return out


def a_mask_of_weights(h, out, x):
    mask = h.detach()[:, 0] > 0
    out[mask] = h[mask] * 2
    return out


FORMS = [
    sorted_and_back,
    rows_in_order,
    columns_in_order,
    best_rows,
    best_of_each_row,
    one_of_each_row,
    rows_of_unique,
    rows_of_unique_remainders,
    rows_of_unique_with_negative_ones,
    rows_of_a_permutation,
    places_of_a_mask,
    columns_of_nonzero,
    masks,
    a_mask_of_weights,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_writes_are_pytorchs(tmp_path, form):
    torch.manual_seed(1)
    beside(Kit.train_once, tmp_path, Writing(form))


def rows_that_repeat(h, out, x):
    out[x.argmax(1)] = h
    return out


def columns_that_repeat(h, out, x):
    return out.index_copy(1, x.argmax(1)[:6], h)


def rows_of_two_masks(h, out, x):
    rows, columns = (x > 0).nonzero(as_tuple=True)[0], (x.flip(0) > 0).nonzero(as_tuple=True)[1]
    out[rows, columns] = h[rows, columns]
    return out


def some_axes_of_a_mask(h, out, x):
    rows = (x > 0).nonzero(as_tuple=True)[0]
    out[rows] = h[rows]
    return out


def the_same_rows_of_topk(h, out, x):
    places = x.topk(2, 1)[1]
    out[torch.zeros(8, 1, dtype=torch.int64), places] = h[:, :2]
    return out


def one_of_topk_beside_a_row_that_repeats(h, out, x):
    rows = torch.arange(8)[:, None].expand(8, 3)
    out[rows, x.topk(1, 1)[1]] = h[:, :3]
    return out


def one_row_of_two_numbers(h, out, x):
    rows = torch.cat([x.long()[:, 0], torch.tensor([-1, 7])]).unique()
    out[rows] = h[: len(rows)]
    return out


@pytest.mark.parametrize(
    "form",
    [
        rows_that_repeat,
        columns_that_repeat,
        rows_of_two_masks,
        some_axes_of_a_mask,
        the_same_rows_of_topk,
        one_of_topk_beside_a_row_that_repeats,
        one_row_of_two_numbers,
    ],
    ids=lambda form: form.__name__,
)
def test_writes_to_indices_that_may_repeat_are_refused(tmp_path, form):
    kit = Kit(Writing(form))
    said = r"test_distinct_indices.py:\d+: .* index_put needs indices that are known not to repeat"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
