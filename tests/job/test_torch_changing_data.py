"""A data set that the loop changes between passes: streamers have it, in every kind of job."""

from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Workplace

pytest.importorskip("torch")

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
import cerebras_torch as cbtorch


class Data(Dataset):
    def __init__(self):
        self.scale, self.labels = 1.0, torch.zeros(24)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index)]) * self.scale + self.labels[index]


cbtorch.initialize()
data, model = Data(), nn.Linear(1, 1)
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
model = cbtorch.module(model)
optimizer = torch.optim.SGD(model.parameters(), 0.0)
train = cbtorch.dataloader(DataLoader(data, 4))
test = cbtorch.dataloader(DataLoader(Subset(data, range(8)), 8))
with cbtorch.Session(model, optimizer, None, mode="train"):
    for epoch in range(3):
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
        print("pass", [round(float(x), 2) for x in losses], round(mean, 2))
"""


def expected() -> list[str]:
    """Means of the samples, as the formula has them."""
    lines = []
    for epoch in range(3):
        means = [10.0**epoch * (4 * n + 1.5) + 100 * epoch for n in range(6)]
        lines.append(f"pass {means} {10.0**epoch * 3.5 + 100 * (epoch + 1)}")
    return lines


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [(*TWO_STREAMERS, "python-ws"), ("python-pt",)],
    ids=["streaming", "one task"],
)
def test_streamers_make_samples_of_the_data_as_the_loop_has_it(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    place = Workplace(tmp_path)
    done = place.run(*command, place.script(SCRIPT))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
    assert said == expected()
