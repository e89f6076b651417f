"""A PyTorch loop whose steps differ, in each way of running: PyTorch's numbers, the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Workplace

pytest.importorskip("torch")

PLAIN = Path(__file__).parents[1] / "support" / "plain_torch"
SCRIPT = """
import copy
import json
import random
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4)

    def forward(self, x):
        x = self.first(x).tanh()
        if self.training and random.random() < 0.6:
            x = self.middle(x).tanh()
        return self.last(x)


cbtorch.initialize(model_dir="model_dir")
torch.manual_seed(0)
random.seed(1)
data = TensorDataset(torch.randn(40, 6), torch.randint(0, 4, (40,)))
own, labels = torch.randn(12, 6), torch.randint(0, 4, (12,))
model = cbtorch.module(LayerDrop())
loader = cbtorch.dataloader(DataLoader(data, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(4):
        if epoch == 1:
            best = copy.deepcopy(model.state_dict())
        if epoch == 3:
            model.load_state_dict(best)
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            estimate = cross_entropy(model(own), labels).item()
        model.train()
        print("pass", json.dumps([loss.item(), estimate]))
"""
OWN = """
import json
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x, scale):
        x = self.first(x).tanh() * scale
        return self.last(x + 0.1 * torch.randn_like(x))


cbtorch.initialize(model_dir="model_dir")
torch.manual_seed(0)
x, y = torch.randn(40, 6), torch.randint(0, 4, (40,))
model = cbtorch.module(Noisy())
loader = cbtorch.dataloader(DataLoader(TensorDataset(x, y), 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = 0
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(4):
        drawn = torch.randint(40, (3, 12))
        for inputs, labels in [(x[i], y[i]) for i in drawn] if epoch % 2 else loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs, torch.rand(1, 9)), labels) * (1 + 0.1 * step)
            loss.backward()
            optimizer.step()
            step += 1
        print("pass", json.dumps([loss.item()]))
"""
WRITES = """
import json
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)
        self.average = nn.Linear(6, 9).requires_grad_(False)

    def forward(self, x):
        return self.last(self.first(x).tanh() + self.average(x))


cbtorch.initialize(model_dir="model_dir")
torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 6), torch.randint(0, 4, (40,)))
model = cbtorch.module(Averaged())
loader, held_out = (cbtorch.dataloader(DataLoader(data, 8)) for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def average():
    for one, other in zip(model.average.parameters(), model.first.parameters()):
        one.data = 0.9 * one.data + 0.1 * other.data


with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            average()
        model.eval()
        estimates = []
        for x, y in held_out:
            with torch.no_grad():
                estimates.append(cross_entropy(model(x), y).item())
        model.train()
        print("pass", json.dumps([loss.item(), *estimates]))
"""
MASKED = """
import json
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch


class Labelling(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x, labels):
        h = self.first(x).tanh()
        out = self.last(h + h[x[:, 0] > 0].mean(0))
        return cross_entropy(out[labels >= 0], labels[labels >= 0]), out


cbtorch.initialize(model_dir="model_dir")
torch.manual_seed(0)
x, labels = torch.randn(40, 6), torch.randint(0, 4, (40,))
for row in range(40):
    x[row, 0] = x[row, 0].abs() if row % 8 < 3 else -x[row, 0].abs()
labels[::8] = -100
labels[17] = -100
model = cbtorch.module(Labelling())
loader = cbtorch.dataloader(DataLoader(TensorDataset(x, labels), 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(4):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss, out = model(inputs, targets)
            is_known = targets >= 0
            loss = loss + 0.1 * (out[is_known] ** 2).mean()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            known = [model(x, y)[0].item() for x, y in loader]
        model.train()
        print("pass", json.dumps([loss.item(), *known]))
"""
ADVERSARIAL = """
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

cbtorch.initialize(model_dir="model_dir")
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 5))
g = cbtorch.module(nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 5)))
d = cbtorch.module(nn.Sequential(nn.Linear(5, 9), nn.LeakyReLU(0.2), nn.Linear(9, 1)))
loader = cbtorch.dataloader(DataLoader(data, 8))
d_optimizer = torch.optim.Adam(d.parameters(), lr=0.01)
g_optimizer = torch.optim.Adam(g.parameters(), lr=0.01)
criterion = nn.BCEWithLogitsLoss()
real, fake = torch.ones(8, 1), torch.zeros(8, 1)
with cbtorch.Session([d, g], [d_optimizer, g_optimizer], mode="train"):
    for epoch in range(4):
        for (x,) in loader:
            d_optimizer.zero_grad()
            made = g(torch.randn(8, 3))
            criterion(d(x), real).backward()
            d_loss = criterion(d(made.detach()), fake)
            d_loss.backward()
            d_optimizer.step()
            g_optimizer.zero_grad()
            g_loss = criterion(d(made), real)
            g_loss.backward()
            g_optimizer.step()
        print("pass", json.dumps([d_loss.item(), g_loss.item()]))
"""
STREAMING, PIPELINED, ONE_TASK = COMMANDS = (
    (*TWO_STREAMERS, "python-ws"),
    (*TWO_STREAMERS, "python-pt"),
    ("python-pt",),
)


def numbers(output: str) -> list[list[float]]:
    """Losses that the script has printed, a line a pass."""
    return [json.loads(line[5:]) for line in output.splitlines() if line.startswith("pass ")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "commands"),
    [
        (SCRIPT, COMMANDS),
        (OWN, [PIPELINED]),
        (WRITES, [ONE_TASK]),
        (MASKED, [STREAMING]),
        (ADVERSARIAL, COMMANDS),
    ],
    ids=["graphs", "tensors", "writes", "masks", "adversarial"],
)
def test_each_way_of_running_has_pytorchs_numbers_and_the_same_bits(
    tmp_path: Path, text: str, commands: list[tuple[str, ...]]
) -> None:
    """One script in all ways, each of the others in one."""
    script = tmp_path / "run.py"
    script.write_text(text)
    alone = {**os.environ, "PYTHONPATH": str(PLAIN)}
    plain = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert plain.returncode == 0, plain.stderr
    found = []
    for number, command in enumerate(commands):
        place = Workplace(tmp_path / str(number))
        place.path.mkdir()
        done = place.run(*command, place.script(text))
        assert done.returncode == 0, done.stderr
        found.append(numbers(done.stdout))
    assert all(each == found[0] for each in found)
    for ours, theirs in zip(found[0], numbers(plain.stdout), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(found[0]) == 4
