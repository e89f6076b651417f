"""Models initialized on the meta device: first values equal to the bit, and a training."""

import re
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.deferred_init import tape  # noqa: E402

VOCABULARY, LENGTH = 40, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(12), 3
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).split(12, dim=2)
        q, k, v = (p.view(len(x), -1, self.heads, 4).transpose(1, 2) for p in parts)
        x = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).flatten(2))


def initialize(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.1)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class Gpt(nn.Module):
    """GPT with tied weights that are drawn twice, and a table and a mask as computed buffers."""

    def __init__(self):
        super().__init__()
        self.wte, self.blocks = nn.Embedding(VOCABULARY, 12), nn.ModuleList([Block(), Block()])
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(12, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer(
            "positions", torch.linspace(-1, 1, LENGTH)[:, None].expand(-1, 12).cos()
        )
        self.register_buffer("seen", torch.tril(torch.ones(LENGTH, LENGTH))[:, :1].bool())
        self.scale = torch.full((12,), 0.5)  # neither a parameter nor a buffer
        self.apply(initialize)
        with torch.no_grad():
            for block in self.blocks:
                block.out.weight.mul_(0.5)

    def forward(self, tokens):
        x = self.dropout(self.wte(tokens) + self.positions * self.scale) * self.seen
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Initializers(nn.Module):
    """Initializers of PyTorch, and usual ones written by users."""

    def __init__(self):
        super().__init__()
        self.padded = nn.Embedding(9, 4, padding_idx=3)
        self.cut, self.orthogonal = nn.Linear(7, 5), nn.Linear(9, 5)
        nn.init.trunc_normal_(self.cut.weight, std=0.8)  # which draws until nothing is cut off
        nn.init.orthogonal_(self.orthogonal.weight)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.copies = nn.TransformerEncoder(layer, 2)
        self.chosen = nn.Parameter(torch.randn(6)[torch.randperm(6)])
        self.own = nn.Parameter(torch.empty(40).normal_(generator=torch.Generator().manual_seed(3)))
        self.given = nn.Parameter(torch.tensor([1.0, 2.0]) * torch.ones(2))
        with torch.no_grad():
            self.cut.bias[1:3].uniform_()
            self.cut.bias *= 2
            self.made = nn.Parameter(self.orthogonal.weight[:, ::2].t() + self.cut.bias)
        self.recurrent, self.normed = nn.LSTM(3, 4), nn.BatchNorm1d(4)
        self.convolution = nn.Conv2d(3, 4, 3).double()


@pytest.mark.parametrize("make", [Gpt, Initializers])
def test_first_values_are_those_of_the_model_that_is_built_in_memory(make):
    torch.manual_seed(5)
    eager = make()
    after = torch.get_rng_state()
    torch.manual_seed(5)
    with cbtorch.meta_init():
        model = make()
    assert torch.equal(torch.get_rng_state(), after)
    assert all(p.device.type == "meta" for p in model.parameters())
    ours, theirs = (m.state_dict(keep_vars=True) for m in (model, eager))
    assert list(ours) == list(theirs)
    for name in reversed(ours):  # in any order
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(tape.materialize(ours[name]), theirs[name]), name
    assert torch.equal(torch.get_rng_state(), after)
    assert getattr(model, "rates", None) == getattr(eager, "rates", None)


def test_a_weight_that_is_drawn_anew_is_made_by_the_last_draw_alone(monkeypatch):
    with cbtorch.meta_init():
        model = nn.Linear(4, 3)
        nn.init.normal_(model.weight)
    ran, run = [], tape._replay
    monkeypatch.setattr(
        tape, "_replay", lambda made, storages: ran.append(made) or run(made, storages)
    )
    tape.materialize(model.weight)
    assert [made.call for made in ran] == [torch.ops.aten.normal_.default]


class Script:
    """A training of the GPT that also returns each step's number of hits."""

    def __init__(self, folder, is_on_meta):
        torch.manual_seed(3)
        cbtorch.initialize(model_dir=folder)
        with cbtorch.meta_init() if is_on_meta else nullcontext():
            model = Gpt()
        self.model = cbtorch.module(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        tokens = torch.randint(VOCABULARY, (32, LENGTH + 1))
        data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
        self.loader = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
        self.losses, self.hits, self.states = [], 0, []

    def run(self, epochs=3, keeps=True):
        criterion = nn.CrossEntropyLoss()
        with cbtorch.Session(self.model, self.optimizer, criterion, mode="train") as session:
            for _ in range(epochs):
                for tokens, following in self.loader:
                    self.optimizer.zero_grad()
                    logits = self.model(tokens)
                    hits = (logits.argmax(-1) == following).sum()
                    loss = criterion(logits.flatten(0, 1), following.flatten())
                    loss.backward()
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.hits += hits.item()
                    self.losses.append(loss)
                if keeps and not session.is_replayed:
                    self.states.append({n: x.clone() for n, x in self.model.state_dict().items()})
        self.losses = [loss.item() for loss in self.losses]
        return self


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_a_training_is_that_of_the_model_that_is_built_in_memory(tmp_path):
    theirs, ours = Script(tmp_path / "eager", False).run(), Script(tmp_path / "meta", True)
    parameters = list(ours.model.parameters())
    ours.run()
    assert (ours.losses, ours.hits) == (theirs.losses, theirs.hits)
    assert all(map(same, ours.states, theirs.states))
    assert len(ours.states) == 3
    assert same(ours.model.state_dict(), theirs.model.state_dict())
    assert all(a is b for a, b in zip(ours.model.parameters(), parameters, strict=True))
    assert ours.model.head.weight is ours.model.wte.weight
    states = [s.optimizer.state_dict()["state"] for s in (ours, theirs)]
    assert all(same(states[0][n], states[1][n]) for n in states[1])
    again = Script(tmp_path / "meta", True).run()  # takes no step
    assert again.losses == ours.losses
    assert same(again.model.state_dict(), theirs.model.state_dict())
    ours.model.eval().scale = torch.full((12,), 0.5)
    ours.model(torch.zeros(2, LENGTH, dtype=torch.long)).sum().backward()
    before = ours.model.head.weight.clone()
    ours.optimizer.step()  # in plain PyTorch
    assert not torch.equal(ours.model.head.weight, before)


def test_an_evaluation_makes_first_values_too(tmp_path):
    found = []
    for is_on_meta in (True, False):
        script = Script(tmp_path, is_on_meta)
        model = script.model.eval()
        with cbtorch.Session(model, mode="eval"), torch.no_grad():
            found.append([model(tokens).sum().item() for tokens, _ in script.loader])
    assert found[0] == found[1]


def test_the_optimizers_state_stays_on_disk_where_it_does_not_fit(tmp_path, monkeypatch, caplog):
    from csrun.pytorch.weights import sync

    class Full:
        available = 1000

    monkeypatch.setattr(sync.psutil, "virtual_memory", Full)
    script = Script(tmp_path, True).run(1)
    assert not script.optimizer.state
    assert "the optimizer has none after the block" in caplog.text


def numbers(model):
    model.weight.detach().numpy()  # here


def chance(model):
    torch.bernoulli(model.weight)  # here


def elsewhere(model):
    IN_MEMORY.copy_(model.weight)  # here


IN_MEMORY = torch.zeros(3, 4)
REFUSED = {
    numbers: "cannot be replayed, as it reads the values of a tensor on the meta device",
    chance: "draws by the values of a tensor",
    elsewhere: "writes a tensor without memory into one with memory",
}


@pytest.mark.parametrize("what", REFUSED, ids=lambda what: what.__name__)
def test_what_cannot_be_made_again_is_refused_by_its_line(what):
    line = what.__code__.co_firstlineno + 1
    said = f"{re.escape(__file__)}:{line}: .*{REFUSED[what]}"
    with pytest.raises(UsageError, match=said), cbtorch.meta_init():
        what(nn.Linear(4, 3))


def test_what_was_read_must_be_what_it_was():
    table = torch.ones(3, 4)
    with cbtorch.meta_init():
        model = nn.Linear(4, 3)
        model.weight.data.copy_(table)
    table.add_(1)
    with pytest.raises(UsageError, match=r"written later.*give it a clone"):
        tape.materialize(model.weight)


def test_a_write_after_the_block_is_refused(tmp_path):
    script = Script(tmp_path, True)
    with pytest.warns(UserWarning, match="copying from a non-meta parameter"):
        script.model.load_state_dict(Gpt().state_dict())
    with pytest.raises(UsageError, match="written after the block"):
        script.run(1)


def test_a_model_of_the_meta_device_alone_is_refused(tmp_path):
    script = Script(tmp_path, True)
    script.model = cbtorch.module(Gpt().to("meta"))
    script.optimizer = torch.optim.SGD(script.model.parameters(), 0.1)
    with pytest.raises(UsageError, match="must be on the CPU, got one on meta"):
        script.run(1)


def test_weights_are_read_by_state_dict_in_the_block(tmp_path):
    script = Script(tmp_path, True)

    with pytest.raises(UsageError, match=r"has no memory in the Session's block.*state_dict\(\)"):
        criterion = nn.CrossEntropyLoss()
        with cbtorch.Session(script.model, script.optimizer, criterion, mode="train"):
            for tokens, following in script.loader:
                script.optimizer.zero_grad()
                logits = script.model(tokens).flatten(0, 1)
                criterion(logits, following.flatten()).backward()
                script.optimizer.step()
                script.model.head.weight.norm()


def test_between_blocks_weights_stay_in_a_file(tmp_path, monkeypatch):
    """They are not copied out of the store; the next block uses what the script writes to them."""
    from csrun.pytorch.weights import sync

    def trained(is_on_meta):
        script = Script(tmp_path / f"{is_on_meta}", is_on_meta).run(1, keeps=False)
        first, script.losses = script.losses, []
        with torch.no_grad():
            script.model.head.weight.mul_(0.5)
        if is_on_meta:
            monkeypatch.setattr(sync, "read_weights", None)
        script.run(1, keeps=False).losses += first
        return script

    theirs, ours = trained(False), trained(True)
    assert ours.losses == theirs.losses
    assert same(ours.model.state_dict(), theirs.model.state_dict())
    states = [s.optimizer.state_dict()["state"] for s in (ours, theirs)]
    assert all(same(states[0][n], states[1][n]) for n in states[1])
