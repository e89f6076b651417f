"""PyTorch loops whose steps differ, in each way of running: PyTorch's results, the same bits."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

PLAIN = Path(__file__).parents[1] / "support" / "plain_torch"
IMPORTS = """
import copy
import json
import random
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
import cerebras_torch as cbtorch
"""
GRAPHS = """
class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4)

    def forward(self, x):
        x = self.first(x).tanh()
        if self.training and random.random() < 0.6:
            x = self.middle(x).tanh()
        return self.last(x)


cbtorch.initialize(model_dir="model_dir/graphs", max_group_bytes=256)
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
            if epoch > 1:  # all gradients before the first update: MemoryX needs a larger store
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            estimate = cross_entropy(model(own), labels).item()
        model.train()
        print("pass", json.dumps([loss.item(), estimate]))
"""
TENSORS = """
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x, scale):
        x = self.first(x).tanh() * scale
        return self.last(x + 0.1 * torch.randn_like(x))


cbtorch.initialize(model_dir="model_dir/tensors")
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
class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)
        self.average = nn.Linear(6, 9).requires_grad_(False)

    def forward(self, x):
        return self.last(self.first(x).tanh() + self.average(x))


cbtorch.initialize(model_dir="model_dir/writes")
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
MASKS = """
class Labelling(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x, labels):
        h = self.first(x).tanh()
        out = self.last(h + h[x[:, 0] > 0].mean(0))
        return cross_entropy(out[labels >= 0], labels[labels >= 0]), out


cbtorch.initialize(model_dir="model_dir/masks")
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
SELECTED = """
class Selected(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 4)

    def forward(self, x, labels):
        is_known = labels >= 0
        return cross_entropy(self.last(self.norm(self.first(x)[is_known])), labels[is_known])


cbtorch.initialize(model_dir="model_dir/selected")
torch.manual_seed(0)
x, labels = torch.randn(48, 5, 6), torch.randint(0, 4, (48, 5))
labels[torch.rand(48, 5) < 0.4] = -100
model = cbtorch.module(Selected())
loader = cbtorch.dataloader(DataLoader(TensorDataset(x, labels), 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(4):
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = model(inputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print("pass", json.dumps([*map(float, losses)]))
"""
ADVERSARIAL = """
cbtorch.initialize(model_dir="model_dir/adversarial")
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
CHANGING = """
class Data(Dataset):
    def __init__(self):
        self.scale, self.labels = 1.0, torch.zeros(24)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index)]) * self.scale + self.labels[index]


cbtorch.initialize(model_dir="model_dir/changing")
data, model = Data(), nn.Linear(1, 1)
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
model = cbtorch.module(model)
optimizer = torch.optim.SGD(model.parameters(), 0.0)
train = cbtorch.dataloader(DataLoader(data, 4))
test = cbtorch.dataloader(DataLoader(Subset(data, range(8)), 8))
with cbtorch.Session(model, optimizer, None, mode="train"):
    for epoch in range(4):
        data.scale = 10.0**epoch
        losses = []
        for x in train:
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        data.labels += 100
        model.eval()
        with torch.no_grad():
            (mean,) = [model(x).mean().item() for x in test]
        model.train()
        print("pass", json.dumps([*map(float, losses), mean]))
"""
FORMS = """
class Forms(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.middle = nn.Linear(6, 4), nn.Linear(6, 6)
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.shift = nn.Parameter(torch.zeros(1, 6))
        self.register_buffer("is_set", torch.tensor(False))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("codes", torch.zeros(5, 6))

    def forward(self, x):
        x = self.norm(self.first(x))
        if self.training and not self.is_set:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0, keepdim=True))
                self.codes.copy_(x[:5])
            self.is_set.fill_(True)
        x = x + self.shift
        if self.training and random.random() < 0.6:
            x = self.middle(x).tanh()
        near = (x[:, None] - self.codes).square().sum(2).argmin(1)
        if self.training:
            self.steps += 1
            hits = nn.functional.one_hot(near, 5).to(x.dtype)
            with torch.no_grad():
                self.codes.lerp_(hits.t() @ x / hits.sum(0).clamp(min=1)[:, None], 0.1)
        return self.last(x + (self.codes[near] - x).detach() * (self.steps > 3))

cbtorch.initialize(model_dir="model_dir/forms")
torch.manual_seed(0)
random.seed(1)
data = TensorDataset(torch.randn(36, 6).double(), torch.randint(0, 4, (36,)))
model = cbtorch.module(Forms().double())
loader = cbtorch.dataloader(DataLoader(data, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            known = [cross_entropy(model(x), y).item() for x, y in loader]
        model.train()
        print("pass", json.dumps([loss.item(), *known]), flush=True)
"""
PARTS = {
    "forms": FORMS,  # a flag and a counter among the buffers, weights that forward sets, LayerDrop
    "graphs": GRAPHS,
    "tensors": TENSORS,
    "writes": WRITES,
    "masks": MASKS,
    "selected": SELECTED,  # counts that differ from batch to batch, with padded rows
    "adversarial": ADVERSARIAL,
    "changing": CHANGING,  # a data set that the loop changes between passes: streamers have it
}
PASSES = 4  # of each
#: Ways of running, and the parts of each: one part in all ways, the others in one or two.
JOBS = (
    (
        (*TWO_STREAMERS, "python-ws"),
        ("graphs", "forms", "masks", "selected", "adversarial", "changing"),
    ),
    ((*TWO_STREAMERS, "python-pt"), ("graphs", "forms", "tensors", "selected", "adversarial")),
    (("python-pt",), ("graphs", "writes", "changing")),
)
Losses = list[list[float]]


def means_of_changing(epoch: int) -> list[float]:
    """Means of its samples, as the formula has them."""
    means = [10.0**epoch * (4 * n + 1.5) + 100 * epoch for n in range(6)]
    return [*means, 10.0**epoch * 3.5 + 100 * (epoch + 1)]


def script_of(names: Iterable[str]) -> str:
    """These parts in turn; each has a model and a model_dir of its own."""
    return "\n".join((IMPORTS, *(PARTS[name] for name in names)))


def numbers(output: str, names: Iterable[str]) -> dict[str, Losses]:
    """Losses that a script of these parts has printed, a line a pass."""
    lines = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("pass ")]
    found = {name: lines[n * PASSES : (n + 1) * PASSES] for n, name in enumerate(names)}
    assert len(lines) == PASSES * len(found)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_way_of_running_has_pytorchs_numbers_and_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(script_of(PARTS))
    alone = {**os.environ, "PYTHONPATH": str(PLAIN)}
    plain = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert plain.returncode == 0, plain.stderr
    found: dict[str, Losses] = {}
    for number, (command, names) in enumerate(JOBS):
        place = Sandbox(tmp_path / str(number))
        place.path.mkdir()
        done = place.run(*command, place.script(script_of(names)))
        assert done.returncode == 0, done.stderr
        for name, losses in numbers(done.stdout, names).items():
            assert found.setdefault(name, losses) == losses, (name, command)
    expected = numbers(plain.stdout, PARTS)
    assert found.keys() == expected.keys()
    for name, losses in found.items():
        for ours, theirs in zip(losses, expected[name], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5), name
    for epoch, means in enumerate(found["changing"]):
        assert means == pytest.approx(means_of_changing(epoch), rel=1e-5)
