"""A PyTorch script in jobs of every kind: the same bits, killed or not."""

from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

STEPS = 44  # four passes of eleven batches
SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

folder, killed_at = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
cbtorch.initialize(model_dir=folder, save_checkpoints_steps=20)
model = cbtorch.module(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30))
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(85, 6), torch.randint(4, (85,)))  # the last batch has 5
train = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
validation = cbtorch.dataloader(DataLoader(data, 16))
step = 0
with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for epoch in range(4):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step == killed_at:
                loss.item()
                os.kill(os.getpid(), signal.SIGKILL)
        model.eval()
        with torch.no_grad():
            total = sum(criterion(model(x), y).item() for x, y in validation)
        cbtorch.master_print(f"pass {epoch}: {total!r}")
"""

IN_TURN = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

folder, killed_at = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
cbtorch.initialize(model_dir=folder, save_checkpoints_steps=5)
model = cbtorch.module(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(85, 6), torch.randint(4, (85,)))  # the last batch has 5
train = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
validation = cbtorch.dataloader(DataLoader(data, 16))
step = 0


def validated():
    model.eval()
    with cbtorch.Session(model, criterion=criterion, mode="eval"), torch.no_grad():
        total = sum(criterion(model(x), y).item() for x, y in validation)
    model.train()
    return total  # no other task comes here


print(f"pass none: {validated()!r}")  # before anything is trained
for epoch in range(3):
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step == killed_at:
                loss.item()
                os.kill(os.getpid(), signal.SIGKILL)
    print(f"pass {epoch}: {loss.item()!r}, {validated()!r}")
"""
FOUR_STREAMERS = ("--total-nodes", "3", "--tasks-per-node", "4", "--cpus-per-task", "1")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sessions_in_turn_are_one_job_with_the_same_bits_also_when_it_is_killed(
    tmp_path: Path,
) -> None:
    place = Sandbox(tmp_path)
    (tmp_path / "script.py").write_text(IN_TURN)

    def trained(folder: str, *words: str, killed_at: int = 0, command: str = "csrun_wse") -> object:
        done = place.run(*words, "script.py", folder, str(killed_at), command=command)
        path = tmp_path / folder / "model-ckpt-33.safetensors"
        said = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
        return done.returncode, said, path.read_bytes() if path.exists() else done.stderr

    whole = trained("one", "python", command="csrun_cpu")
    assert isinstance(whole, tuple)
    assert (whole[0], len(whole[1])) == (0, 4), whole
    assert trained("streaming", *FOUR_STREAMERS, "python-ws") == whole
    killed = trained(
        "killed", "--total-nodes", "2", "--tasks-per-node", "1", "python-pt", killed_at=17
    )
    assert isinstance(killed, tuple)
    assert (killed[0], len(killed[1])) == (137, 2), killed
    assert trained("killed", *FOUR_STREAMERS, "python-pt") == whole


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_job_goes_on_with_the_same_bits_on_other_streamers(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)

    def trained(folder: str, *command: str, killed_at: int = 0) -> tuple[int, str, bytes]:
        done = place.run(*command, "script.py", folder, str(killed_at))
        path = tmp_path / folder / f"model-ckpt-{STEPS}.safetensors"
        said = "\n".join(line for line in done.stdout.splitlines() if line.startswith("pass "))
        return done.returncode, said, path.read_bytes() if path.exists() else b""

    whole = trained("one", *TWO_STREAMERS, "python-pt")
    assert whole[0] == 0
    assert whole[1].count("pass ") == 4
    killed = trained("killed", "--total-nodes", "4", "python-pt", killed_at=27)
    assert (killed[0], killed[2]) == (137, b"")
    assert trained("killed", *TWO_STREAMERS, "python-pt") == whole
