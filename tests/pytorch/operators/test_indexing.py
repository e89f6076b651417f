"""Embeddings, indexing, and writes to indices."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from support.torch_rows import check_exact, check_near, row, with_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.record.functions.function_rewrites import log_dense  # noqa: E402


def places_from_the_end(x, w):
    last = x[:, [-1]] * x[:, [-2, -2, -2]] + w[torch.arange(3), [-1, -1, -1]][:, None]
    return (
        last + x[:, torch.tensor([-1, 0, -3])] + w[[-2, -1, 1]] + x.index_select(2, torch.arange(6))
    )


def lookups(x, w):
    places = torch.tensor([2, 0, 0])
    y = f.embedding(torch.tensor([[0, 1, 2]] * 4), w) + f.embedding(places, w) + w[places]
    return (
        y
        + x.index_select(1, places)
        + x.gather(1, torch.tensor([0, 2, 1])[None, :, None].expand(4, 3, 6))
        + torch.tril(x)
    )


def written_places(x, w):
    places = torch.tensor([2, 0]), torch.tensor([1, 5])
    put = torch.ops.aten.index_put(x, [None, *places], w[0, :2].detach())
    y = put + x.index_add(1, places[0], x[:, :2], alpha=2)
    y = y + x.scatter_reduce(1, torch.zeros(4, 2, 6, dtype=torch.int64), x[:, 1:], "mean")
    y = (
        y
        + torch.slice_scatter(x, w[:2] * x[:, :2], 1, 0, 2)
        + x.unfold(1, 2, 1).sum((1, 3))[:, None]
    )
    return y + torch.diag_embed(torch.diagonal(x @ w.t(), dim1=1, dim2=2)).sum(1, True)[..., :1]


def searches(x, w):
    bounds, kinds = (
        torch.tensor([-0.5, 0, 0.5]).double(),
        torch.bucketize(x.detach(), w[0].sort()[0]),
    )
    y = x * torch.searchsorted(bounds, x, right=True) + x * torch.isin(kinds, torch.tensor([1, 4]))
    chosen = x.detach()[:, :1] > 0  # of the whole batch, in order
    return y + x.masked_scatter(chosen.expand(x.shape), (x * w).transpose(0, 1))


def numbers_at_repeated_places(x, w):
    """Integers and booleans, such as masks made from lengths of the batch."""
    ends = x.detach()[:, :, 0].argmax(1)
    counts, truths = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.bool)
    counts[(torch.zeros(4, dtype=torch.int64), ends)] = 3
    truths[(torch.arange(4), ends)] = True
    return x * counts[..., None] + (x * w).masked_fill(truths[..., None], 0.5)


def gates_of_topk(x, w):
    """Gates of a mixture: weights of the best experts, zeros for the others."""
    best, places = x.topk(4, dim=2)
    gates = torch.zeros_like(x).scatter(2, places[..., :2], best[..., :2].softmax(2))
    return gates * w + x.scatter(-1, places, best * w[..., :4])


def several_places(x, w):
    y = x[:, torch.tensor([[2], [0]]), torch.tensor([1, -1, 5])].sum((1, 2))[:, None, None]
    y = y + x[torch.arange(4)[:, None], torch.tensor([[2, 0]])].sum(1, True) * w[0]
    y = y + x[torch.tensor([0, -1, 0]), :, torch.tensor([3, 2, 3])].sum()
    y = y + x[torch.arange(4), x.detach().argmax(1)[:, 0]][:, None]  # places of the batch
    return y + x * (x.detach() > 0).cumsum(1)


def places_of_the_batch_from_the_end(x, w):
    """Reads and writes at indices of the batch, of which negative ones wrap."""
    places = (x.detach()[:, 0, 0] > 0).long() - 2  # -1 or -2, of each sample
    y = w[places][:, None] * x + x[torch.arange(4), places][:, None]
    put = torch.zeros_like(x).index_put((torch.arange(4), places), w[places] * 2)
    y = y + put + torch.zeros(3, 6, dtype=x.dtype).index_put((places,), x[:, 0], accumulate=True)
    return y + x.detach().index_fill(1, places[:1], 0.5) + w.take(places)[:, None, None]


def ids(x):
    return torch.arange(x.shape[0] * 3).view(-1, 3) % 7


def target(x, classes=5):
    return torch.arange(len(x)) % classes


def causal(x):
    mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
    return x.masked_fill(mask[None, :, :1], 0.5)


EXACT = with_table(
    places_from_the_end,
    lookups,
    written_places,
    several_places,
    places_of_the_batch_from_the_end,
    searches,
    numbers_at_repeated_places,
    gates_of_topk,
)


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


BAGS = torch.tensor([0, 3, 3, 5])  # an empty one among them


def bags(x, table):
    """One row of each bag for each sample; row numbers and bags are in the batch."""
    rows, starts = ids(x).flatten()[:9], BAGS + (x[0, 0] > 9).long()
    weights = {"per_sample_weights": torch.linspace(-1, 1, 9).double()}
    found = f.embedding_bag(rows, table.weight, starts, mode="sum", **weights)
    found = found * f.embedding_bag(rows, table.weight, starts, padding_idx=3)
    found = found + f.embedding_bag(rows, table.weight, starts, mode="max", padding_idx=2)
    return x * found + x * f.embedding_bag(ids(x), table.weight, padding_idx=1)


def bags_of_equal_rows(x, table):
    """Bags of equal rows: the gradient of the maximum goes to the first one."""
    same, starts = table.weight - table.weight.detach() + 0.5, BAGS + (x[0, 0] > 9).long()
    found = f.embedding_bag(ids(x).flatten()[:9], same, starts, mode="max", padding_idx=2)
    found = found * f.embedding_bag(ids(x).flatten()[:9], same, BAGS, mode="max")
    return x * found + x * f.embedding_bag(ids(x), same, mode="max")


def segments(x):
    """Segment reductions of one to three rows."""
    lengths = torch.tensor([1, 3])
    found = [torch.segment_reduce(x, name, lengths=lengths) for name in ("max", "mean", "prod")]
    ends = torch.segment_reduce(x, "min", offsets=torch.tensor([0, 2, 4]))
    return torch.cat([*found, ends, torch.segment_reduce(x, "sum", lengths=lengths)])


NEAR = {
    "bags": row(bags, 5, modules=[nn.Embedding(7, 5)]),
    "bags_of_equal_rows": row(bags_of_equal_rows, 5, modules=[nn.Embedding(7, 5)]),
    "bags_to_an_end": row(
        lambda x, table: x * table(ids(x).flatten()[:9], torch.tensor([0, 2, 4, 9, 9])),
        5,
        modules=[nn.EmbeddingBag(7, 5, mode="sum", include_last_offset=True)],
    ),
    "segments": row(segments, 5),
    "embedding_by_frequency": row(
        lambda x, table: table(ids(x)).mean(1) * x,
        5,
        modules=[nn.Embedding(7, 5, scale_grad_by_freq=True)],
    ),
    "embedding_padded": row(
        lambda x, table: table(ids(x)).mean(1) * x, 5, modules=[nn.Embedding(7, 5, padding_idx=3)]
    ),
    "one_hot": row(lambda x: x * f.one_hot(target(x), 5), 5),
    "masked_fill": row(causal, 3, 4),
    "pad": row(lambda x: f.pad(x, (1, 2, 0, 1)), 2, 3, 4),
    "pad_value": row(lambda x: f.pad(x, (1, 1), value=0.5), 2, 3),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)


class Tokens(nn.Module):
    """Two tables looked up at values of the batch; their gradients are sparse in PyTorch."""

    def __init__(self):
        super().__init__()
        self.table, self.bags = (
            kind(7, 6, sparse=True) for kind in (nn.Embedding, nn.EmbeddingBag)
        )

    def forward(self, x):
        places = (3 * x).long() % 7
        return self.table(places).mean(1) + self.bags(places)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_are_dense_with_the_same_numbers(tmp_path, caplog, kind):
    caplog.set_level(logging.INFO, logger="csrun")
    log_dense.cache_clear()
    layers = Tokens(), nn.Linear(6, 4)
    beside(Kit.train_once, tmp_path, *layers, optimizer=lambda p: kind(p, 0.1))
    said = [line for line in caplog.messages if "sparse=True is dense" in line]
    assert len(said) == 1  # for the line of both tables


class ShiftedBags(nn.Module):
    """Embedding bag whose first offset is not 0."""

    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(7, 6)

    def forward(self, x):
        return self.bags((3 * x).long().flatten() % 7, torch.arange(1, 42, 6))


def test_offsets_that_do_not_begin_with_0_are_refused_as_in_pytorch(tmp_path):
    kit = Kit(ShiftedBags(), nn.Linear(6, 4))
    with pytest.raises(RuntimeError, match=r"offsets\[0\] has to be 0"):
        kit.train_once()
    said = r"test_indexing.py:\d+: embedding_bag: offsets\[0\] must be 0, got 1"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
