"""Loops on batches of several lengths, on two float types, and evaluations in training mode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

PLAIN = Path(__file__).parents[1] / "support" / "plain_torch"
SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader
import cerebras_torch as cbtorch


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(20, 8, padding_idx=0), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

    def forward(self, ids):
        mean = self.embedding(ids).sum(1) / (ids != 0).sum(1, keepdim=True)
        return self.head(self.norm(mean).tanh()) * self.scale


def padded(samples):
    ids, labels = zip(*samples)
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(labels)


torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir")
lengths = [5] * 24 if sys.argv[1] == "equal" else [3, 5, 5, 2, 7, 4, 3, 3, 6, 7, 2, 2] * 2
samples = [(torch.randint(1, 20, (n,)), n % 4) for n in lengths]
model = cbtorch.module(Reader())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = cbtorch.dataloader(DataLoader(samples, 4, shuffle=True, collate_fn=padded))
losses = []
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        with torch.no_grad():  # it updates the statistics
            losses += [nn.functional.cross_entropy(model(x), y) for x, y in loader]
        losses.append(model.norm.running_var.sum())
losses += [p.double().sum() for p in model.state_dict().values()]
print("losses", *map(float, losses))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["equal", "several"])
def test_all_three_commands_give_the_same_bits_beside_pytorch(tmp_path: Path, lengths: str) -> None:
    (script := tmp_path / "run.py").write_text(SCRIPT)
    alone = {**os.environ, "PYTHONPATH": str(PLAIN)}
    command = [sys.executable, script, lengths]
    plain = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    found = []
    for name, words in {
        "csrun_cpu": ("python",),
        "pipelined": (*TWO_STREAMERS, "python-pt"),
        "streamed": (*TWO_STREAMERS, "python-ws"),
    }.items():
        (folder := tmp_path / name).mkdir()
        place = Sandbox(folder)
        launcher = "csrun_cpu" if name == "csrun_cpu" else "csrun_wse"
        done = place.run(*words, place.script(SCRIPT), lengths, command=launcher)
        assert done.returncode == 0, done.stderr
        found.append(losses_in(done.stdout))
    assert found[0] == pytest.approx(losses_in(plain.stdout), rel=1e-5)
    assert found[1] == found[0]
    assert found[2] == found[0]


def losses_in(output: str) -> list[float]:
    (line,) = (line for line in output.splitlines() if line.startswith("losses "))
    return [float(number) for number in line.split()[1:]]
