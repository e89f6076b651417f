"""The table of what is refused, in docs/pytorch.md: each row is provoked, or is in the code."""

import ast
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record  # noqa: E402
from support.torch_loops import Kit  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.cirh.algorithms import SgdAttr  # noqa: E402
from csrun.pytorch.errors import CaptureError  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of  # noqa: E402
from csrun.pytorch.optimizers import Optimization  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/pytorch.md"
CODE = Path(__file__).parents[2] / "csrun"
OTHER = torch.ones(40, requires_grad=True)


def one_label(x):
    return torch.zeros(6, 40, dtype=torch.long) + torch.arange(6)[:, None]


def bags(x):
    return f.embedding_bag(torch.arange(6), x.t(), torch.tensor([0, 2]))


def grid(x):
    places = x[:, :12].reshape(6, 2, 3, 2)
    return x * f.grid_sample(x.view(6, 1, 8, 5), places, align_corners=False).sum()


def spectrum(x):
    return torch.fft.rfft(x).abs() @ torch.ones(21, 40)


#: By the first column of the table: what forward makes of [6, 40].
IN_FORWARD = {
    "`h[h > 0]`, `h.unique()` of what weights compute": lambda x: x[x > 0].sum() + x,
    "`.half()`, `.bfloat16()`, autocast": lambda x: x.half().float(),
    "`.to(device)`": lambda x: x + torch.ones(40, device="meta"),
    "a weight outside of the model": lambda x: x * OTHER,
    "a write into a weight, `nn.Embedding(max_norm=...)`": nn.Embedding(6, 40, max_norm=1.0),
    "checkpointing of dropout": lambda x: checkpoint(f.dropout, x, use_reentrant=False),
    "`F.rrelu` in training; gradients that are edited with random numbers from a later step on": (
        lambda x: f.rrelu(x, training=True)
    ),
    "`nn.Embedding(sparse=True)`": nn.Embedding(6, 40, sparse=True),
    "`nn.Conv3d`": lambda x: f.conv3d(x.view(6, 1, 2, 4, 5), torch.ones(1, 1, 1, 1, 1)).view(6, 40),
    "a pooling's indices, `nn.MaxUnpool2d`": lambda x: f.max_unpool1d(
        *f.max_pool1d(x[None], 2, return_indices=True), 2
    )[0],
    "`nn.EmbeddingBag` with offsets": lambda x: x * bags(x).sum(),
    "`F.grid_sample`": grid,
    "`scatter_reduce` with amax, amin or prod": lambda x: x.scatter_reduce(
        1, one_label(x), x, "amax"
    ),
    "`torch.fft`": spectrum,
    "`torch.complex`, complex weights": lambda x: torch.complex(x, x).abs(),
    "`torch.linalg.inv`, `solve`, `det`, `svd`, `eigh`, `qr`, `cholesky`": lambda x: (
        x * torch.linalg.inv(x[:, :6]).sum()
    ),
    "`torch.lgamma`, `digamma`, `erfinv`, Bessel functions": torch.lgamma,
    "`sort`, `topk` of more than 32": lambda x: x.sort(1).values,
    "`cumsum` over more than 2,048": lambda x: x.repeat(1, 60).cumsum(1)[:, :40],
    "an `InstanceNorm` with running statistics": lambda x: nn.InstanceNorm1d(
        6, track_running_stats=True
    )(x[None])[0],
    "`median`, `mode`, `cummax`, `index_reduce`, `kthvalue` and "
    "others without an emitter": lambda x: x.kthvalue(2, keepdim=True).values * x,
}
#: What makes an optimizer of parameters.
OPTIMIZERS = {
    "`LBFGS`, `Rprop`, `ASGD`, `Adafactor`, `Muon`, `SparseAdam`, those of other packages": (
        optim.Rprop
    ),
    "`differentiable=True` of an optimizer": lambda p: optim.SGD(p, differentiable=True),
    "`eps=0` of an optimizer": lambda p: optim.Adam(p, eps=0.0),
}


def changes_eps(kit):
    kit.optimizer.param_groups[0]["momentum"] = 0.1


#: What a loop does between backward() and step(), in each step.
IN_LOOP = {
    "betas, eps, momentum that the loop changes": changes_eps,
    "`optimizer.step(closure)`": lambda kit: kit.optimizer.step(lambda: 1.0),
    "`load_state_dict` of the optimizer between steps": lambda kit: kit.optimizer.load_state_dict(
        {}
    ),
}
COMPILED = "a model of `torch.compile`, DDP, `jit.script`"


class Model(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.linear, self.then = nn.Linear(4, 40), [then]

    def forward(self, x):
        return self.then[0](self.linear(x))


def step(model, batch):
    model.zero_grad()
    loss = f.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return loss


def rows():
    """First column to second, of both tables."""
    section = PAGE.read_text().partition("## What is refused")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if " | " in line]
    return {row[0]: row[1].strip("`") for row in found if row[0] != "construct"}


def messages(source):
    """The texts of a module, with {} for each value in them."""
    nodes = list(ast.walk(ast.parse(source)))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    for node in joined:
        yield "".join(getattr(part, "value", 0) if _is_text(part) else "{}" for part in node.values)
    parts = {id(part) for node in joined for part in node.values}
    yield from (node.value for node in nodes if _is_text(node) and id(node) not in parts)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def require_message(what, error):
    assert re.match(r".*\.py:\d+: ", str(error)), "it names the line"
    assert rows()[what] in str(error)


def test_each_row_is_provoked_or_has_a_message_of_the_code():
    """What the other tests of this folder provoke has its words here once more."""
    found, provoked = rows(), [*IN_FORWARD, *OPTIMIZERS, *IN_LOOP, COMPILED]
    assert list(found)[: len(provoked)] == provoked
    code = [text for path in CODE.rglob("*.py") for text in messages(path.read_text())]
    others = list(found.items())[len(provoked) :]
    assert [row for row in others if not any(row[1] in text for text in code)] == []


@pytest.mark.parametrize("what", IN_FORWARD)
def test_a_row_of_forward_has_the_message(what):
    then = IN_FORWARD[what]
    model, batch = Model(then), (torch.randn(6, 4), torch.arange(6))
    if isinstance(then, nn.Embedding):
        model.table, model.then = then, [lambda x: x * then(batch[1])]
    with pytest.raises(CaptureError) as error:
        module_of(
            record(model, batch, step),
            dict.fromkeys([name for name, _ in model.named_parameters()], SgdAttr.of(0.1)),
        )
    require_message(what, error.value)


@pytest.mark.parametrize("what", OPTIMIZERS)
def test_a_row_of_optimizers_has_the_message(what):
    model = nn.Linear(2, 2)
    with pytest.raises(UsageError) as error:
        Optimization(OPTIMIZERS[what](model.parameters()), model).algorithms(("weight", "bias"))
    require_message(what, error.value)


@pytest.mark.parametrize("what", IN_LOOP)
def test_a_row_of_the_loop_has_the_message(tmp_path, what):
    kit = Kit()
    with pytest.raises(UsageError) as error, kit.session(tmp_path):
        kit.train_once(lambda step: step < 1 or IN_LOOP[what](kit))
    require_message(what, error.value)


def test_a_compiled_model_has_the_message():
    with pytest.raises(UsageError) as error:
        cbtorch.Session(nn.DataParallel(nn.Linear(2, 2)), None, mode="eval")
    require_message(COMPILED, error.value)
