"""Operators of a PyTorch loop, compared with PyTorch's values of the same step."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from csrun.advice.operator_comparison import (
    OperatorComparison,
    Tolerance,
    compare_with_torch,
)

SCRIPT = """
import sys
import threading

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


if "planted-update" in sys.argv:
    from csrun.pytorch.optimizers.adam import AdamRule

    algorithm = AdamRule.algorithm
    AdamRule.algorithm = lambda rule, group, each: algorithm(rule, {**group, "eps": 0.01}, each)


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
options = {"micro_batch_size": 4} if "micro" in sys.argv else {}
cbtorch.initialize(
    model_dir=sys.argv[1], log_steps=1, save_checkpoints_steps=3, kernels="numpy", **options
)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = cbtorch.module(Network())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
if "phases" in sys.argv:  # the first layer begins in step 3, and its count is split in step 6
    from csrun.pytorch.run.torch_reference import TorchReference

    split, compute = threading.Event(), TorchReference._compute_step
    TorchReference._compute_step = lambda *given: (split.wait(), compute(*given))
    model.first.requires_grad_(False)


every = 2 if "accumulate" in sys.argv else 1
loader = cbtorch.dataloader(torch.utils.data.DataLoader(data, batch_size=16))
with cbtorch.Session(loader, mode="train"):
    for epoch in range(2 if "phases" in sys.argv else every):
        for number, (images, labels) in enumerate(loader):
            if number % every == 0:
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            if number % every == every - 1:
                if "clip" in sys.argv:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            if "phases" in sys.argv:
                model.first.requires_grad_(number > 0 or epoch > 0)
                model.first.bias.requires_grad_(number > 0 and epoch == 0)
                if epoch == 1 and number == 1:
                    loss.item()
                    split.set()
                    break
"""


WSE = (sys.executable, "-m", "csrun.cli.csrun_wse", "--total-nodes", "3", "python-ws")


def compared(folder: Path, words: Sequence[str], *options: str) -> OperatorComparison:
    """Compare a training of the script with PyTorch in the step after its newest checkpoint."""
    (folder / "script.py").write_text(SCRIPT)
    command = [*words, "script.py", "model_dir", *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return compared_again(folder)


def compared_again(folder: Path) -> OperatorComparison:
    """Compare a training by its recorded command."""
    found = compare_with_torch(folder / "model_dir", Tolerance(64, of_largest=True))
    assert (found.start, found.first_step, found.last_step) == (3, 4, 4)
    assert not found.unlike
    return found


@pytest.mark.slow  # test_first_difference.py has batches in parts, the test below PyTorch's side
def test_a_job_with_batches_that_are_accumulated_in_parts(tmp_path: Path) -> None:
    found = compared(tmp_path, WSE, "micro", "accumulate", "clip")
    assert found.is_equal, found.difference
    assert found.compared >= 12 + 6 * 3  # forward, gradients; weights and both moments


def test_a_layer_that_began_later_than_others_and_a_wrong_kernel(tmp_path: Path) -> None:
    """Only the run of the second comparison has the wrong kernel."""
    found = compared(tmp_path, [sys.executable], "phases")
    assert found.is_equal, found.difference
    assert found.compared >= 6 * 3
    command = tmp_path / "model_dir" / "train" / "command_train.json"
    command.write_text(command.read_text().replace('"phases"', '"phases", "planted"'))
    different = compared_again(tmp_path).difference
    assert different is not None
    assert (different.step, different.layer) == (4, "norm")
    assert different.recorded == "aten_native_layer_norm_default"
    line = 1 + SCRIPT.splitlines().index("        return self.last(self.norm(x))")
    assert different.line.endswith(f"script.py:{line}")
    assert different.value.place == (3, 5)


@pytest.mark.slow  # test_first_difference.py has one between two trainings of csrun
def test_a_wrong_update(tmp_path: Path) -> None:
    different = compared(tmp_path, [sys.executable], "planted-update").difference
    assert different is not None
    assert (different.layer, different.operator) == ("first", "update of weights")
    assert different.key == "update/after/weights/first/weight"
