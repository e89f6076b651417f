"""Parameters that forward updates from their earlier values, as in momentum encoders."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import CsrunError  # noqa: E402


class Momentum(nn.Module):
    """Layer and its moving average, which forward updates first."""

    def __init__(self, update):
        super().__init__()
        self.query, self.key = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
        self.update = update

    def forward(self, x):
        pairs = zip(self.query.parameters(), self.key.parameters(), strict=True)
        self.scaled = [self.update(*pair) for pair in pairs]
        return self.query(x) - 0.5 * self.key(x)


def assigned(q, k):
    k.data = k.data * 0.9 + q.data * (1.0 - 0.9)


@torch.no_grad()
def copied(q, k):
    mean = (k - q).mul_(0.9)
    k.copy_(mean + q)


def decayed(q, k):
    """Decay applied in forward to the trained weight, too."""
    q.data = q.data * 0.8
    k.data = k.data * 0.9 + q.data * (1.0 - 0.9)


def kept(q, k):
    scaled = k.detach() * 0.9
    k.data = scaled + q.data * (1.0 - 0.9)
    return scaled


def used_in_the_step(kit, x):
    out = kit.model(x)
    return out + kit.model[0].scaled[1]


def read_in_the_step(kit, x):
    out = kit.model(x)
    return out + float(kit.model[0].scaled[1][0])


def read_after_the_step(kit, x):
    out = kit.model(x)
    kit.update(kit.criterion(out, torch.zeros(len(x), dtype=torch.long)))
    return kit.model[0].scaled[1].tolist()


@pytest.mark.parametrize("update", [assigned, copied, decayed])
def test_an_average_of_its_earlier_value_is_pytorchs(tmp_path, update):
    beside(lambda kit: kit.train_once() + kit.train_once(), tmp_path, Momentum(update))


@pytest.mark.parametrize("use", [used_in_the_step, read_in_the_step, read_after_the_step])
def test_what_it_computes_before_must_not_be_used_after(tmp_path, use):
    kit = Kit(Momentum(kept))
    said = r"test_forward_writes.py:\d+: a value of parameter .* is used after forward has written"
    with pytest.raises(CsrunError, match=said), kit.session(tmp_path):
        for x, y in kit.train:
            kit.update(kit.criterion(use(kit, x), y))
