"""Gradient accumulation of a PyTorch script, in jobs of every kind: the same bits."""

from pathlib import Path

import pytest
from support.jobs import Sandbox

pytest.importorskip("torch")

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

folder, killed_at = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
cbtorch.initialize(model_dir=folder, save_checkpoints_steps=6)
layers = nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 4)
model = cbtorch.module(nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 9))
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(85, 6), torch.randint(4, (85,)))  # the last batch has 5
train = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
batch = 0
with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for epoch in range(6):
        for x, y in train:
            loss = criterion(model(x), y) / 4
            loss.backward()
            if batch % 4 == 0:  # first of one batch, which is another store's
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                early = norm.item() if batch % 8 == 0 else 0.0
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            batch += 1
            if batch == killed_at:
                loss.item()
                os.kill(os.getpid(), signal.SIGKILL)
        cbtorch.master_print(f"pass {epoch}: {loss.item()!r} {norm.item()!r} {early!r}")
"""
STEPS = 17  # behind batches 1, 5, ... of 66
FOUR_STREAMERS = ("--total-nodes", "3", "--tasks-per-node", "4", "--cpus-per-task", "1")
ONE = ("--total-nodes", "2", "--tasks-per-node", "1")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_kind_of_job_gives_the_same_bits_and_goes_on_when_killed(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)

    def trained(folder: str, *words: str, killed_at: int = 0, command: str = "csrun_wse") -> object:
        done = place.run(*words, "script.py", folder, str(killed_at), command=command)
        path = tmp_path / folder / f"model-ckpt-{STEPS}.safetensors"
        said = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
        assert "different data" not in done.stdout + done.stderr
        return done.returncode, said, path.read_bytes() if path.exists() else done.stderr

    whole = trained("one", "python", command="csrun_cpu")
    assert isinstance(whole, tuple)
    assert (whole[0], len(whole[1])) == (0, 6), whole
    killed = trained("killed", *ONE, "python-pt", killed_at=39)  # goes on behind step 6
    assert isinstance(killed, tuple)
    assert (killed[0], len(killed[1])) == (137, 3), killed
    assert trained("killed", *FOUR_STREAMERS, "python-ws") == whole
