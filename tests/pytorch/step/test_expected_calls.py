"""Calls of step 1 that later steps make again."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402


def test_an_evaluation_writes_into_its_values(tmp_path):
    """As Hugging Face's Trainer scales the loss that a model returns."""

    def loop(kit):
        found = []
        for _ in range(2):
            found += kit.train_once()
            with torch.no_grad():
                for x, y in kit.val:
                    out = kit.model(x)
                    out *= 3
                    found.append(kit.criterion(out, y))
        return found

    beside(loop, tmp_path)


class TakesMore(nn.Module):
    """Model with an argument that the loss does not depend on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4).double()

    def forward(self, x, count=None):
        return self.linear(x)


class TakesMoreKit(Kit):
    def __init__(self):
        super().__init__()
        self.model = TakesMore()
        self.optimizer = optim.SGD(self.model.parameters(), 0.05)


def test_the_model_leaves_a_value_of_the_batch_unused(tmp_path, caplog):
    """As Hugging Face's Trainer gives each model the number of labels."""

    def loop(kit):
        found = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            count = sum([y.ne(0).sum()]).to(torch.device("cpu")) / 1
            loss = kit.criterion(kit.model(x, count=count), y)
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        return found

    with caplog.at_level("INFO", "csrun"):
        beside(loop, tmp_path, kit=TakesMoreKit)
    assert not any("each step is recorded" in line for line in caplog.messages)
