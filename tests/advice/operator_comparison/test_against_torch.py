"""Operators of a PyTorch loop, compared with PyTorch's own values of the same step."""

import subprocess
import sys
from pathlib import Path

import pytest

from csrun.advice.operator_comparison import Tolerance, compare_with_torch

SCRIPT = """
import sys

import torch
from torch import nn

import cerebras_torch as cbtorch
from csrun.kernels import normalization

if "planted" in sys.argv:
    layer_norm = normalization.layer_norm

    def wrong_layer_norm(x, weight, bias, results, *others):
        layer_norm(x, weight, bias, results, *others)
        results.out[3, 5] *= 1.25

    normalization.layer_norm = wrong_layer_norm


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = nn.functional.dropout(torch.relu(self.first(x)), 0.25, self.training)
        return self.last(self.norm(x))


torch.manual_seed(1)
cbtorch.initialize(model_dir=sys.argv[1], log_steps=1, save_checkpoints_steps=3, kernels="numpy")
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = cbtorch.module(Network())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = cbtorch.dataloader(torch.utils.data.DataLoader(data, batch_size=16))
with cbtorch.Session(loader, mode="train"):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("planted", [False, True])
def test_the_step_after_the_newest_checkpoint(tmp_path: Path, planted: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py", "model_dir", *(["planted"] if planted else [])]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    found = compare_with_torch(tmp_path / "model_dir", Tolerance(64, of_largest=True))
    assert (found.start, found.first_step, found.last_step) == (3, 4, 4)
    assert not found.unlike
    if not planted:
        assert found.is_equal, found.difference
        assert found.compared > 10  # forward, and the gradients of six parameters
        return
    different = found.difference
    assert different is not None
    assert (different.step, different.layer) == (4, "norm")
    assert different.recorded == "aten_native_layer_norm_default"
    line = 1 + SCRIPT.splitlines().index("        return self.last(self.norm(x))")
    assert different.line.endswith(f"script.py:{line}")
    assert different.value.place == (3, 5)
