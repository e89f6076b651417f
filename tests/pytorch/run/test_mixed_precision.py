"""Mixed precision of a PyTorch loop: losses close to float32's, and autocast's gradients."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402

FORMATS = "mixed_float16", "mixed_bfloat16", "mixed_cbfloat16"
AUTOCAST = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}
ALIKE = 0.01  # of a loss, of float32's


class Script:
    """Two-layer classifier and its data."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        x = torch.randn(96, 12)
        y = (x[:, :4] + 0.1 * torch.randn(96, 4)).argmax(1)
        self.loader = DataLoader(TensorDataset(x, y), 16)

    def train(self, folder, epochs=6, read=lambda model: None, **options):
        """Losses of the steps."""
        cbtorch.initialize(model_dir=folder, log_steps=1000, **options)
        self.model = cbtorch.module(self.model)
        loader, criterion, losses = cbtorch.dataloader(self.loader), nn.CrossEntropyLoss(), []
        with cbtorch.Session(self.model, self.optimizer, criterion, mode="train"):
            for _ in range(epochs):
                for x, y in loader:
                    self.optimizer.zero_grad()
                    loss = criterion(self.model(x), y)
                    loss.backward()
                    read(self.model)
                    self.optimizer.step()
                    losses.append(loss.detach())
        return [loss.item() for loss in losses]


@pytest.mark.parametrize("precision", FORMATS)
def test_losses_are_near_those_of_float32(tmp_path, precision):
    whole = Script().train(tmp_path / "whole")
    script = Script()
    halves = script.train(tmp_path / "halves", precision=precision)
    assert halves != whole
    assert halves[-6:] == pytest.approx(whole[-6:], rel=ALIKE, abs=ALIKE * whole[0])
    assert whole[-1] < whole[0] / 2
    assert all(p.dtype == torch.float32 for p in script.model.parameters())
    recorded = Script().train(tmp_path / "recorded", precision=precision, fast=False)
    assert recorded == halves


@pytest.mark.parametrize("precision", AUTOCAST)
def test_gradients_are_those_of_autocast(tmp_path, precision):
    script, found = Script(), []
    theirs = copy.deepcopy(script.model)

    def read(model):
        if not found:
            found.extend(p.grad.clone() for p in model.parameters())

    script.train(tmp_path, epochs=1, read=read, precision=precision)
    x, y = next(iter(script.loader))
    with torch.autocast("cpu", dtype=AUTOCAST[precision]):
        loss = nn.functional.cross_entropy(theirs(x), y)
    loss.backward()
    for ours, parameter in zip(found, theirs.parameters(), strict=True):
        assert torch.linalg.norm(ours - parameter.grad) <= 0.01 * torch.linalg.norm(parameter.grad)


class OfTime(nn.Module):
    """Regression on sines and cosines of a time, as in diffusion models."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(8) / 8))
        self.out = nn.Linear(16, 1)

    def forward(self, t):
        angles = t[:, None].float() * self.frequencies[None]
        embedded = torch.cat([angles.sin(), angles.cos()], -1)
        return self.out(embedded), embedded


def test_angles_of_integers_are_float32(tmp_path):
    """An angle of 900 is off by up to two radians in bfloat16."""
    torch.manual_seed(1)
    times, model = torch.randint(1000, (96,)), OfTime()
    theirs, found = copy.deepcopy(model), []
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    cbtorch.initialize(model_dir=tmp_path, precision="mixed_bfloat16")
    model = cbtorch.module(model)
    loader = cbtorch.dataloader(DataLoader(TensorDataset(times, times.float()[:, None].sin()), 16))
    with cbtorch.Session(model, optimizer, mode="train"):
        for t, y in loader:
            optimizer.zero_grad()
            out, embedded = model(t)
            loss = ((out - y) ** 2).mean()
            loss.backward()
            found.append((embedded.detach(), out.detach(), model.out.weight.grad.clone()))
            optimizer.step()
        found = [tuple(map(torch.clone, each)) for each in found]
    embedded, out, gradient = found[-1]  # the program's; PyTorch computes those of the first steps
    t = times[-16:]
    with torch.autocast("cpu", torch.bfloat16):
        expected, exact = theirs(t)
        ((expected.float() - t.float()[:, None].sin()) ** 2).mean().backward()
    torch.testing.assert_close(embedded, exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(out, expected.float(), rtol=2**-8, atol=0)
    wanted = theirs.out.weight.grad
    assert torch.linalg.norm(gradient - wanted) < 0.01 * torch.linalg.norm(wanted)


def test_a_resumed_training_has_the_weights_of_one(tmp_path):
    one, two = Script(), Script()
    one.train(tmp_path / "one", epochs=4, precision="mixed_bfloat16")
    two.train(tmp_path / "two", epochs=2, precision="mixed_bfloat16", save_checkpoints_steps=6)
    again = Script()
    again.train(tmp_path / "two", epochs=4, precision="mixed_bfloat16")
    for ours, theirs in zip(again.model.parameters(), one.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_float64_is_refused(tmp_path):
    script = Script()
    script.model.double()
    script.loader = DataLoader([(x.double(), y) for x, y in script.loader.dataset], 16)
    with pytest.raises(UsageError, match="needs a model of float32, got float64"):
        script.train(tmp_path, precision="mixed_float16")
    with pytest.raises(UsageError, match="follows from the model"):
        cbtorch.initialize(model_dir=tmp_path, precision="float64")
