"""Sums, norms, extrema and sorting."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from support.torch_rows import check_exact, check_near, row, with_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402


def reductions(x, w):
    y = x.sum((1, 2)) + x.mean(2).amax(1) + x.var(2).min(1).values + torch.logsumexp(x, 2)[:, 0]
    return y + w.std() + x.norm(dim=(1, 2)) + x.max(2)[0][:, 1] + (w * w).mean()


def distances(x, w):
    y = torch.linalg.vector_norm(x, 3, 1) + x.logcumsumexp(1).sum(1)
    return y + torch.cdist(x, w).sum((1, 2), True)[:, 0] + torch.cdist(x, w, 1).mean(1)[:, :1]


def softmaxes(x, w):
    return f.softmax(x, 1) * f.log_softmax(x + w, -1)


def products(x, w):
    y = torch.einsum("bij,kj->bik", x, w) + x @ w.t() + torch.bmm(x, x.transpose(1, 2))
    return y + torch.baddbmm(y, x, w.t().expand(4, -1, -1), beta=0.5, alpha=2)


def infinities(x):
    """Rows with NaN and infinity."""
    places = torch.arange(x.shape[-1]).expand(x.shape)
    x = x.detach().masked_fill(places == 0, torch.nan)
    return x.masked_fill(places == 1, torch.inf).masked_fill(places == 2, -torch.inf)


def within_length(x):
    """Positions up to a length that is a sum of constants, as of an all-ones mask."""
    length = torch.ones_like(x, dtype=torch.int64).sum(1, keepdim=True) - 2
    return x * (torch.arange(x.shape[1]) < length)


EXACT = with_table(reductions, distances, softmaxes, products)


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


def with_infinity(x):
    """The same values, with infinity after the third."""
    return torch.where(torch.arange(x.shape[1]) == 3, torch.inf, x)


def integers(x):
    return (3 * x.detach()).long()


NEAR = {
    "normalize": row(lambda x: f.normalize(x), 5),
    "cumsum_of_many": row(lambda x: x.cumsum(1)[:, ::500] * x[:, ::500], 2049),
    "cumsum_to_infinity": row(lambda x: x * with_infinity(x).cumsum(1)[:, :3].sum(), 5),
    "logsumexp": row(lambda x: x.logsumexp(1) + x.softmax(1).log().sum(1), 4),
    "largest": row(lambda x: x * x.max() + x.min(), 5),
    "largest_equals": row(lambda x: x * x.clamp(-0.1, 0.1).max() + x.clamp(-0.1, 0.1).min(), 5),
    "largest_equals_of_rows": row(lambda x: x * x.clamp(-0.1, 0.1).amax(1, keepdim=True), 5),
    "topk": row(lambda x: x.topk(2).values * x.topk(2, largest=False).indices, 5),
    "topk_of_columns": row(lambda x: x.topk(2, 1).values, 3, 4),
    "topk_with_infinities": row(lambda x: x * infinities(x).topk(3).indices.sum(1)[:, None], 5),
    "sort": row(lambda x: x.sort(1).values, 5),
    "sort_descending": row(lambda x: x * x.sort(descending=True).indices, 5),
    "argsort": row(lambda x: x * x.argsort(), 5),
    "length_of_ones": row(within_length, 5),
    "topk_of_many": row(lambda x: x.topk(34, 1, largest=False).values[:, :9] * x[:, :9], 36),
    "sort_of_many": row(lambda x: x * x.sort(1, descending=True).values, 36),
    "argsort_of_integers": row(
        lambda x: x * (3 * x.detach()).long().argsort(stable=True, dim=1), 5
    ),
    "sort_of_integers": row(lambda x: x * (3 * x.detach()).long().sort(0, True).values, 5),
    "histc": row(lambda x: x * x.detach().histc(4, -1, 1), 4),
    "histc_ends": row(lambda x: x * x.detach().clamp(-1, 1).histc(5, -1, 1), 5),
    "argmax": row(lambda x: x * f.one_hot(x.argmax(1), 5), 5),
}


def with_none(x):
    """The same values, with NaN at two positions of a row."""
    return torch.where(torch.arange(x.shape[-1]).remainder(3) == 1, torch.nan, x)


def quantiles(x):
    return x.quantile(torch.tensor([0.1, 0.9]).double(), 1)


def running(x):
    return x.cummax(1).indices * x.cummin(0).values


def some_none(x):
    """NaN in one of the rows."""
    return torch.where(torch.arange(4)[:, None] == 2, with_none(x), x)


NEAR.update(
    {
        "median": row(lambda x: x - x.median(), 5),
        "median_of_rows": row(lambda x: x * x.median(1, keepdim=True).values, 6),
        "median_of_columns": row(lambda x: x * x.median(0).values, 3, 7),
        "median_of_integers": row(lambda x: x * integers(x).median(1).indices[:, None], 5),
        "median_of_nan": row(lambda x: x * some_none(x.detach()).median(1)[1][:, None], 5),
        "is_nan_median": row(lambda x: x * some_none(x.detach()).median(1)[0].isnan()[:, None], 5),
        "nanmedian": row(lambda x: x * some_none(x).nanmedian(1, True)[0], 7),
        "nanmedian_of_all": row(lambda x: x - some_none(x).nanmedian(), 6),
        "kthvalue": row(lambda x: x * x.kthvalue(2, 1, True).values, 5),
        "kthvalue_of_columns": row(lambda x: x.kthvalue(3, dim=1)[0], 4, 2),
        "kthvalue_of_nan": row(lambda x: x * with_none(x.detach()).kthvalue(3)[1][:, None], 5),
        "quantile": row(lambda x: x.clamp(x.quantile(0.2), x.quantile(0.75)), 5),
        "quantiles": row(
            lambda x: x * x.quantile(torch.tensor([0.1, 0.9]).double(), 1).sum(0)[:, None], 7
        ),
        "quantile_lower": row(lambda x: x * x.quantile(0.4, 1, True, interpolation="lower"), 6),
        "nanquantile": row(lambda x: x * some_none(x).nanquantile(0.3, 1, True), 6),
        "cummax": row(lambda x: x.cummax(1).values * x.cummax(0).indices, 7),
        "cummin": row(lambda x: x.cummin(1).values * x.cummin(1).indices, 3, 5),
        "cummax_of_integers": row(
            lambda x: x * integers(x).cummax(1)[1] * integers(x).cummin(0)[0], 5
        ),
        "cummax_of_nan": row(lambda x: x * some_none(x.detach()).cummax(1)[1], 5),
    }
)


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value)")
def test_the_logarithm_of_a_sum_of_nothing_is_minus_infinity(tmp_path):
    class Hidden(nn.Linear):
        def forward(self, x):
            rows = torch.arange(4)[:, None]
            hidden = (
                super()
                .forward(x)
                .masked_fill(rows == 1, -torch.inf)
                .masked_fill(rows == 2, torch.inf)
            )
            return torch.logsumexp(hidden, 1).clamp(-3, 5)

    torch.manual_seed(0)
    batch = torch.randn(4, 3).double(), torch.randn(4).double()
    model = Hidden(3, 3).double()
    assert model(batch[0])[1:3].tolist() == [-3, 5]

    def step(model, batch):
        model.zero_grad()
        loss = (model(batch[0]) * batch[1]).sum()
        loss.backward()
        return loss

    Beside(model, batch, step, tmp_path).check(1e-12, 1e-11)


def test_a_sum_over_an_axis_of_one_row_does_not_add_to_what_lay_there(tmp_path):
    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.tensor([-1.0, 2.0], dtype=torch.float64))

        def forward(self, x):
            rows = (self.table * x.mean()).repeat(1, 1)
            return (rows.view(-1) * torch.tensor([0.5, 1.5], dtype=torch.float64)).sum() * 0.3

    def step(model, batch):
        model.zero_grad()
        loss = model(batch[0])
        loss.backward()
        return loss

    labels = torch.zeros(2, dtype=torch.int64)
    batch = torch.tensor([[0.75], [1.25]], dtype=torch.float64), labels
    Beside(Repeated(), batch, step, tmp_path).check(1e-12, 1e-11)
