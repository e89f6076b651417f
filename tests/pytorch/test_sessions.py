"""Several Sessions of one script: parts of one run, with one store."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402


class Script:
    """A model, its optimizer, a shuffled training set whose last batch is short, a validation."""

    def __init__(self, seed=3):
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(6, 9, False), nn.BatchNorm1d(9), nn.Linear(9, 4)
        ).double()
        self.optimizer = optim.AdamW(self.model.parameters(), 0.02)
        self.criterion = nn.CrossEntropyLoss()
        x, y = torch.randn(61, 6, dtype=torch.float64), torch.randint(4, (61,))
        data = TensorDataset(x, y)
        self.train_loader = DataLoader(data, 8, shuffle=True)
        self.eval_loader = DataLoader(data, 16)
        self.make = Plain

    def on_csrun(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        cbtorch.module(self.model)
        self.train_loader = cbtorch.dataloader(self.train_loader)
        self.eval_loader = cbtorch.dataloader(self.eval_loader)
        self.make = cbtorch.Session
        return self

    def train(self):
        self.model.train()
        with self.make(self.model, self.optimizer, self.criterion, mode="train"):
            losses = []
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            return [float(loss) for loss in losses]

    def evaluate(self):
        self.model.eval()
        with self.make(self.model, None, self.criterion, mode="eval"), torch.no_grad():
            return sum(self.criterion(self.model(x), y).item() for x, y in self.eval_loader)


class Plain:
    """No Session: the loop is PyTorch's."""

    def __init__(self, *unused, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def epochs(script, count, after=lambda epoch: None):
    """A training and an evaluation in turn, a Session each: all that was read."""
    torch.manual_seed(4)
    read = []
    for epoch in range(count):
        read += script.train()
        read.append(script.evaluate())
        after(epoch)
    return read


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def same_weights(one, other, assert_same=close):
    for name, value in one.model.state_dict().items():
        assert_same(value, other.model.state_dict()[name])


def test_sessions_in_turn_are_one_run_with_pytorchs_numbers(tmp_path, caplog):
    ours, theirs = Script().on_csrun(tmp_path), Script()
    with caplog.at_level("INFO", "csrun"):
        found = epochs(ours, 4)
    close(found, epochs(theirs, 4))
    same_weights(ours, theirs)
    compiled = [line for line in caplog.messages if "ompiled in" in line]
    assert len(compiled) == 4, compiled  # training and evaluation, each with a short last batch
    assert sum("Cached" in line for line in caplog.messages) == 0
    close(epochs(ours, 1), epochs(theirs, 1))
    ours.make = Plain
    close(epochs(ours, 1), epochs(theirs, 1))  # both go on in PyTorch
