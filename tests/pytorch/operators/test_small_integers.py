"""Arithmetic of uint8, int8 and int16 with PyTorch's wraparound."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from support.torch_rows import check_exact, named  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

HIGH = {torch.uint8: 255, torch.int8: 127, torch.int16: 1 << 13}


def numbers(x, kind):
    """Integers of a small type computed from the batch: of both signs, up to the largest."""
    return (x.detach().sigmoid() * HIGH[kind]).to(kind)


def sums(x):
    y = 0
    for kind in HIGH:
        n = numbers(x, kind)
        y = y + (n + 200 % HIGH[kind]).float() + (n - 128 % HIGH[kind]).float() * x
        y = y + (n * 3).float() + (1 - n).float() + (-n).float() + (n + n.flip(0)).float()
        y = y + (n.square() // 3).float() + n.sum().float() + (n * 100).amax().float()
    return y * 1e-3


def mixed(x):
    """Operations with other types, which promote small integers."""
    n = numbers(x, torch.uint8)
    y = (n + 200).long() + (n + torch.tensor(200)) % 25 + (n.to(torch.int8) + n) + n / 7
    return y * 1e-2 + x * n + (n.bool() + (x > 0).byte()).gt(1)


def selections(x):
    n = numbers(x, torch.uint8)
    y = torch.where(n > 128, n, torch.zeros_like(n)).float() + n.clamp(10, 200).float() * x
    y = y + torch.cat([n[:1], n[1:].flip(0)]).float() + f.pad(n, (1, -1), value=9).float()
    return y * 1e-2 + torch.arange(256, dtype=torch.uint8).flip(0)[n.long()].float()


def test_small_integers_wrap_as_pytorchs(tmp_path):
    check_exact(named(sums, mixed, selections), tmp_path)


class Bytes(nn.Linear):
    """Module that also returns small integers."""

    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x):
        out = super().forward(x)
        return out, (out > 0).byte() + 254, (out * 60).to(torch.int8)


@pytest.mark.parametrize("fast", [True, False])
def test_the_loop_reads_small_integers_in_their_own_type(tmp_path, fast):
    def loop(kit):
        found = []
        for x, y in (batch for _ in range(2) for batch in kit.train):
            out, mask, small = kit.model(x)
            loss = kit.criterion(out, y)
            assert mask.numpy().dtype == "uint8"
            found += [mask.sum().item(), (mask + 1).double().mean(), (small - 100).double().mean()]
            kit.update(loss)
            found.append((small * mask).double().mean())
        return found

    beside(loop, tmp_path, Bytes(), settings={"fast": fast})
