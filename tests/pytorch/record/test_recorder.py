"""Steps of users' loops, recorded, interpreted and compiled, against PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside, record, supervised  # noqa: E402
from support.transformers_of_users import Bert, Gpt, language_step  # noqa: E402
from torch import (  # noqa: E402
    distributions,
    nn,
    optim,
)
from torch.nn import functional as f  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError  # noqa: E402
from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.pytorch.record.recording import LeafSource  # noqa: E402


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Dropout(0.0), nn.Linear(5, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(6, 2, 4), torch.tensor([0, 1, 2, 1, 0, -100])


@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_step_is_pytorchs(tmp_path, mode):
    Beside(mlp(), batch(), supervised(nn.CrossEntropyLoss()), tmp_path, mode).check()


def test_weights_after_steps_of_sgd_are_pytorchs(tmp_path):
    model, step = mlp(), supervised(nn.CrossEntropyLoss())
    beside = Beside(model, batch(), step, tmp_path)
    machine = beside.machine()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        beside.ours(machine)
        step(model, batch())
        optimizer.step()
    for name, parameter in model.named_parameters():
        ours = torch.from_numpy(machine.state[name.replace(".", "/")])
        torch.testing.assert_close(ours, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_recording_knows_layers_lines_and_leaves():
    recording = record(mlp(), batch(), supervised(nn.CrossEntropyLoss()))
    scopes = {op.name: op.scope for op in recording.operators}
    assert scopes["aten.relu.default"] == scopes["aten.threshold_backward.default"] == "2"
    assert scopes["aten.addmm.default"] == "4"
    assert scopes["csrun::cross_entropy_backward"] == ""
    assert all("recorded.py:" in op.line for op in recording.operators)
    assert [leaf.name for leaf in recording.of(LeafSource.PARAMETER)] == [
        f"{layer}.{name}" for layer in (1, 4) for name in ("weight", "bias")
    ]
    assert [recording.kind(x.value).shape for x in recording.of(LeafSource.INPUT)] == [
        (6, 2, 4),
        (6,),
    ]


def test_parameters_are_the_users_own_again():
    model = mlp()
    record(model, batch(), supervised(nn.CrossEntropyLoss()))
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())


@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_gpt_with_a_tied_table_is_pytorchs(tmp_path, mode):
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 31, (4, 12)), torch.randint(0, 31, (4, 12))
    labels[0, :5] = -1
    beside = Beside(Gpt(), (tokens, labels), language_step, tmp_path, mode)
    beside.check()
    scopes = {op.scope for op in beside.recording.operators if op.is_backward}
    assert {"h/1/attn/qkv", "h/0/ln_2", "wte", "head"} <= scopes


def test_a_bert_with_a_padding_mask_is_pytorchs(tmp_path):
    torch.manual_seed(0)
    tokens = torch.randint(1, 31, (5, 12))
    tokens[2, 7:] = tokens[4, 3:] = 0
    batch = tokens, torch.tensor([0, 1, 2, 1, 0])
    Beside(Bert(), batch, supervised(nn.CrossEntropyLoss()), tmp_path).check()


class Model(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("slopes", torch.ones(4))
        self.register_buffer("bias", None)
        self.function = function

    def forward(self, x):
        return self.function(self, self.linear(x))


def losses(folder, function, read=None, clip=None):
    """Losses of 5 steps, in a Session, or in PyTorch without a folder.

    read: first step in which the model's other output is read, after `optimizer.step()`.
    """
    torch.manual_seed(0)
    model = Model(function).double()
    optimizer = optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4).double(), torch.arange(20) % 4), 4)
    found = []

    def loop(batches):
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            out = model(x)
            loss = out[0] if isinstance(out, tuple) else f.cross_entropy(out, y)
            torch.autograd.backward([loss])
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            found.append(loss.detach())
            if read is not None and step >= read:
                found.append(out[1].sum().item())

    if folder is None:
        loop(loader)
    else:
        cbtorch.initialize(model_dir=folder)
        model, batches = cbtorch.module(model), cbtorch.dataloader(loader)
        with cbtorch.Session(model, optimizer, None, mode="train"):
            loop(batches)
    return [float(x) for x in found]


def makes_a_buffer(self, h):
    if self.bias is None:
        self.register_buffer("bias", self.slopes * h.detach()[0])
    return h + self.bias


REFUSED = {
    makes_a_buffer: "forward creates the buffer bias: create it in __init__",
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_forward_may_not_do_is_refused_with_its_line(tmp_path, function):
    with pytest.raises(CsrunError, match=r"test_recorder.py:\d+: .*" + REFUSED[function]):
        losses(tmp_path, function, read=0)


def scores_by_distributions(self, h):
    normal = distributions.Normal(h[:, :2], h[:, 2:].exp())
    one = distributions.Normal(torch.zeros(2).double(), torch.ones(2).double())
    chosen = distributions.Categorical(logits=h).log_prob(torch.tensor([0, 1, 2, 3]))
    away = distributions.kl_divergence(normal, one)
    return away.mean() - chosen.mean() - normal.log_prob(torch.ones(1)).mean(), h


def spreads_more_than_it_has(self, h):
    return h.var(1, correction=3).mean(), h


def has_a_row(self, h):
    """Product of a vector and a matrix, which PyTorch squeezes in place."""
    row = h[0] @ self.linear.weight
    return (h * row).square().mean() * row.dim(), row


def has_places(self, h):
    values, places = f.max_pool1d(h[:, None], 2, return_indices=True)
    return values.square().mean(), places


def has_truths(self, h):
    return h.square().mean(), torch.ones_like(h, dtype=torch.bool)


@pytest.mark.parametrize(
    ("function", "clip"),
    [
        (has_truths, None),
        (has_places, None),
        (has_a_row, None),
        (scores_by_distributions, None),
        (spreads_more_than_it_has, None),
        (lambda self, h: h, 0.0),
    ],
    ids=["truths", "places", "row", "distributions", "correction", "clipped to zero"],
)
def test_what_pytorch_only_checks_is_not_asked(tmp_path, function, clip):
    read = 0 if function in (has_truths, has_places) else None
    expected = losses(None, function, read, clip)
    assert losses(tmp_path, function, read, clip) == pytest.approx(expected, rel=1e-9)
