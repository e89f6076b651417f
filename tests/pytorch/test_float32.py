"""Float32 training: as close to PyTorch as PyTorch is to itself.

Two libraries sum products in different orders, so that float32 gradients differ in their last
bits, which a training amplifies to some extent. PyTorch itself gives the bound: the same steps
from first weights that differ by one bit.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402

STEPS, BATCH, SAMPLES, WIDTH, CLASSES = 400, 32, 1024, 20, 4


@pytest.fixture(autouse=True)
def one_thread():
    """Limit PyTorch to one thread, as waking others takes longer than these layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Trained:
    """Losses, weights and momenta after all steps."""

    losses: list[Any]
    weights: list[Any]
    momenta: list[Any]

    def distances(self, other: "Trained") -> list[float]:
        """Largest differences of losses, weights and momenta."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return [
            max(float((a.double() - b.double()).abs().max()) for a, b in zip(*pair, strict=True))
            for pair in pairs
        ]


def a_bit_away(model: nn.Module, seed: int) -> None:
    """Move each weight to an adjacent float32 number, up or down."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.nextafter(p, p + torch.randn_like(p)))


def trained(
    activation: Callable[[], nn.Module], folder: Any = None, moved_by: int | None = None
) -> Trained:
    """Train by SGD with momentum: on csrun with a folder, else in PyTorch."""
    torch.manual_seed(3)
    layers = nn.Linear(WIDTH, 64), activation(), nn.Linear(64, 32), activation()
    model = nn.Sequential(*layers, nn.Linear(32, CLASSES))
    if moved_by is not None:
        a_bit_away(model, moved_by)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
    samples = TensorDataset(x, x[:, :CLASSES].argmax(1))
    loader: Any = DataLoader(samples, BATCH, shuffle=True, drop_last=True)
    session: Any = nullcontext()
    if folder is not None:
        cbtorch.initialize(model_dir=folder)
        model, loader = cbtorch.module(model), cbtorch.dataloader(loader)
        session = cbtorch.Session(model, optimizer, criterion, mode="train")
    torch.manual_seed(4)  # of the order
    losses = []
    with session:
        for step in range(STEPS):
            if step % len(loader) == 0:
                batches = iter(loader)
            inputs, labels = next(batches)
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        losses = [torch.tensor(float(loss)) for loss in losses]
    weights = [p.detach() for p in model.parameters()]
    momenta = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    return Trained(losses, weights, momenta)


def test_losses_weights_and_momenta_of_400_steps_are_pytorchs(tmp_path):
    ours, theirs = trained(nn.Tanh, tmp_path), trained(nn.Tanh)
    assert theirs.losses[-1] < 0.05  # it has learned
    assert max(ours.distances(theirs)) < 1e-6


def test_relu_amplifies_rounding_no_more_than_in_pytorch(tmp_path):
    """ReLU's slope at a sum near zero is 0 or 1, depending on its last bit."""
    ours, theirs = trained(nn.ReLU, tmp_path), trained(nn.ReLU)
    moved = [trained(nn.ReLU, moved_by=seed).distances(theirs) for seed in range(3)]
    assert max(moved[0]) > 1e-6  # no two float32 libraries are nearer
    for our, of_itself in zip(ours.distances(theirs), zip(*moved, strict=True), strict=True):
        assert our < 10 * max(of_itself)
