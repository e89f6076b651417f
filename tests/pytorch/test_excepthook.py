"""Scripts run as commands: error messages, and the state of a repeated run."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import torch
from torch import nn
import cerebras_torch as cbtorch

torch.manual_seed(0)
{begin}
x = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
samples = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = cbtorch.module(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
loader = cbtorch.dataloader(torch.utils.data.DataLoader(samples, 16, shuffle=True))
with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
with torch.no_grad():
    print("weights", sum(p.double().sum() for p in model.parameters()).item())
momenta = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
print("momenta", sum(m.double().sum() for m in momenta).item())
{end}
"""
BEGIN = "cbtorch.initialize()"


def run(folder: Path, begin: str = BEGIN, end: str = "") -> "subprocess.CompletedProcess[str]":
    (folder / "run.py").write_text(SCRIPT.format(begin=begin, end=end))
    return subprocess.run(
        [sys.executable, "run.py"], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_a_script_that_is_run_again_has_what_was_trained(tmp_path: Path) -> None:
    """An error is one line and exit code two."""
    first = run(tmp_path, end="for _ in loader: pass")
    again = run(tmp_path, end="cbtorch.module(3)")
    assert (first.returncode, again.returncode) == (0, 2), first.stderr + again.stderr
    assert first.stdout.count("weights") == first.stdout.count("momenta") == 1
    assert again.stdout == first.stdout
    assert "run.py:24: the dataloader is read outside a Session's block" in first.stderr
    assert "outside" not in again.stderr
    assert "Traceback" not in again.stderr
    (mistake,) = [line for line in again.stderr.splitlines() if "cbtorch.module" in line]
    assert mistake == again.stderr.splitlines()[-1]
    assert mistake.startswith("error: ")
    assert "run.py:24: cbtorch.module takes a torch.nn.Module, got int" in mistake
