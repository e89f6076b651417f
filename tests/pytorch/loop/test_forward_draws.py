"""Random numbers drawn in forward: PyTorch's, in PyTorch's order."""

import json
from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.script_loops import name_of, seeded  # noqa: E402
from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class Noisy(nn.Module):
    """Layer with noise from each of PyTorch's random functions."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        h = self.first(x)
        h = h + torch.randn_like(h) * torch.rand(6, dtype=h.dtype)
        h = h * torch.empty_like(h).bernoulli_(0.7) + torch.normal(h.detach(), 0.1)
        return self.last(h + torch.zeros(6, dtype=h.dtype).uniform_())


class Autoencoder(nn.Module):
    """Variational autoencoder that also draws in eval()."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.last = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 4)

    def forward(self, x):
        std = torch.exp(0.5 * self.spread(x))
        return self.last(self.mean(x) + std * torch.randn_like(std))


class Gumbel(nn.Module):
    """Layer with a Gumbel softmax."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(functional.gumbel_softmax(self.first(x), tau=0.7))


@seeded
def one_pass(kit):
    return kit.train_once()


@pytest.mark.parametrize("layer", [Noisy, Autoencoder, Gumbel])
def test_forward_draws_pytorchs_random_numbers(tmp_path, layer):
    beside(one_pass, tmp_path, layer(), settings={"fast": True})
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert sum(found["recorded_steps"].values()) == (5 if layer is Noisy else 0)


class Twice(Autoencoder):
    """Layer that seeds the generator, or draws a number that decides what it computes."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "seeds":
            torch.manual_seed(11)
        if self.how == "decides" and torch.rand(()) < 0.5:
            x = x.tanh()
        if self.how == "scales":
            x = x * torch.rand(x.shape[1:], dtype=x.dtype)
        return super().forward(x)


def steps_of(kit, loss_of, passes=2):
    losses = []
    for number in range(passes):
        for step, (x, y) in enumerate(kit.train):
            losses.append(kit.update(loss_of(x, y, number * 6 + step)))
        kit.model.eval()
        with torch.no_grad():
            losses += [kit.model(x).sum().item() for x, _ in kit.val]
        kit.model.train()
    return losses


@seeded
def alone(kit):
    return steps_of(kit, lambda x, y, step: kit.criterion(kit.model(x), y))


@seeded
def two_views(kit):
    """Two calls of the model, with a draw by the loop between them."""

    def loss_of(x, y, step):
        first, noise = kit.model(x), torch.randn(8, 4, dtype=x.dtype)
        return kit.criterion(first + 0.1 * noise, y) + (kit.model(x) - first).square().mean()

    return steps_of(kit, loss_of)


@seeded
def changed_after_the_call(kit):
    """A step that is recorded after its draws must not draw again."""

    def loss_of(x, y, step):
        out = kit.model(x)
        more = torch.rand(()).double() if step % 4 == 3 else 0.0
        return kit.criterion(out, y) + (more * out.square().mean() if step > 7 else 0)

    return steps_of(kit, loss_of)


HOW = ("draws", "seeds", "decides", "scales")


def one_is_quick(loop, how):
    is_slow = loop is not alone and how != "decides"
    marks = [pytest.mark.slow] * is_slow
    return pytest.param(loop, how, id=f"{name_of(loop)}-{how}", marks=marks)


@pytest.mark.parametrize(
    ("loop", "how"),
    [one_is_quick(*each) for each in product((alone, two_views, changed_after_the_call), HOW)],
)
def test_draws_of_forward_come_in_pytorchs_order(tmp_path, loop, how):
    beside(loop, tmp_path, Twice(how))


class Leaky(nn.Module):
    """Layer with an operator that draws numbers internally."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(functional.rrelu(self.first(x), training=True))


def test_an_operator_that_computes_with_its_own_draws_is_refused(tmp_path):
    kit = Kit(Leaky())
    said = r"test_forward_draws.py:\d+: aten.rrelu.*computes with random numbers that it draws"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()


class Changing(Twice):
    """Layer that draws in a way set by an attribute."""

    level = 0.1

    def forward(self, x):
        h = self.last(self.mean(x))
        if self.how == "level":
            return h + torch.empty_like(h).normal_(0, self.level)
        if self.how == "kind":
            return h + (torch.randn_like(h) if self.level < 0.2 else torch.rand_like(h))
        if self.how == "unused" and self.level > 0.2:
            torch.rand_like(h)
        if self.how == "apart":
            with torch.random.fork_rng(devices=[]):
                return h + torch.randn_like(h)
        return h + torch.randn_like(h)


@seeded
def annealed_noise(kit):
    losses = []
    for epoch in range(3):
        kit.model[0].level = 0.1 * (1 + epoch)
        losses += kit.train_once()
    return losses


@pytest.mark.parametrize("how", ["level", "kind", "unused", "apart"])
def test_draws_that_forward_changes_are_pytorchs(tmp_path, how):
    beside(annealed_noise, tmp_path, Changing(how))
