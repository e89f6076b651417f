"""Batches read by streamers of a PyTorch loop: results do not depend on their number or mode."""

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.fc_mnist import FOLDER
from support.jobs import STALL_S, Sandbox

pytest.importorskip("torch")

SAMPLES, BATCH, PASSES = 48, 4, 4  # twelve batches a pass, as many for each streamer
SCRIPT = f"""
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import cerebras_torch as cbtorch

folder = sys.argv[1]
torch.manual_seed(1)
cbtorch.initialize(model_dir=folder)
fetched = open(f"{{folder}}-fetched-{{cbtorch.env().rank}}", "w", buffering=1)


class Samples(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn({SAMPLES}, 6), torch.randint(4, ({SAMPLES},))

    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        print(index, file=fetched)
        return self.x[index] + torch.rand(6), self.y[index]


layers = nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.25), nn.Linear(32, 4)
model = cbtorch.module(nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
criterion = nn.CrossEntropyLoss()
train_dataloader = cbtorch.dataloader(DataLoader(Samples(), {BATCH}, shuffle=True))
losses = []
with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for epoch in range({PASSES}):
        for x, y in train_dataloader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
print("losses", [loss.item() for loss in losses])
"""


def printed(text: str) -> list[str]:
    """The losses that a script says."""
    return [line for line in text.splitlines() if line.startswith("losses ")]


def in_passes(path: Path, share: int) -> list[list[int]]:
    """What a streamer has fetched, its share of each pass; it is ahead of the loop in the end."""
    found = [int(line) for line in path.read_text().split()]
    return [found[n * share : (n + 1) * share] for n in range(PASSES)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_streamers_share_the_samples_and_their_number_changes_no_bit(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    results = {}
    for streamers in (1, 4):
        folder = f"with-{streamers}"
        layout = (
            "--total-nodes",
            str(streamers + 1),
            "--tasks-per-node",
            "1",
            "--cpus-per-task",
            "1",
        )
        done = place.run(*layout, "python-pt", "script.py", folder)
        assert done.returncode == 0, done.stderr
        weights = tmp_path / folder / f"model-ckpt-{PASSES * SAMPLES // BATCH}.safetensors"
        results[streamers] = printed(done.stdout), weights.read_bytes()
        files = sorted(tmp_path.glob(f"{folder}-fetched-*"))[1:]  # rank 0 computes
        assert len(files) == streamers
        shares = [in_passes(file, SAMPLES // streamers) for file in files]
        for each in zip(*shares, strict=True):
            assert sorted(chain(*each)) == list(range(SAMPLES))
    assert len(results[1][0]) == 1
    assert all(found == results[1] for found in results.values())


SNIPPET = """
import argparse
import torch
from torch import nn
from run_torch import Network, get_train_dataloader as of
import cerebras_torch as cbtorch

parser = argparse.ArgumentParser()
parser.add_argument("--cs_ip")
args = parser.parse_args()
Model, num_epochs = lambda: Network([50] * 10), 1


def get_train_dataloader():
    return of({{"data_dir": {data!r}, "shift_images": True, "batch_size": 128}})


torch.manual_seed(1)
losses = []
cbtorch.initialize(cs_ip=args.cs_ip)                 # 1
model = cbtorch.module(Model())                      # 2  an nn.Module
train_dataloader = cbtorch.dataloader(get_train_dataloader())   # 3  a torch DataLoader
optimizer, criterion = torch.optim.SGD(model.parameters(), 0.01, 0.9), nn.CrossEntropyLoss()
with cbtorch.Session(model, optimizer, criterion, mode="train") as session:   # 4
    for epoch in range(num_epochs):
        for step, batch in enumerate(train_dataloader):
            optimizer.zero_grad()
            images, labels = batch
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
cbtorch.master_print("losses", [loss.item() for loss in losses])
"""


@pytest.mark.slow
def test_the_loop_that_everybody_writes_has_the_same_bits_under_every_interpreter(
    tmp_path: Path,
) -> None:
    """fc_mnist, ten layers of 50: `python run.py`, and jobs of both modes."""
    said: dict[str, Any] = {}
    for name in ("python", "python-pt", "python-ws"):
        (folder := tmp_path / name).mkdir()
        variables = (("PYTHONPATH", str(FOLDER)), ("OMP_NUM_THREADS", "1"))
        place = Sandbox(folder, variables=variables)
        script = place.script(SNIPPET.format(data=str(FOLDER / "data")))
        if name == "python":
            done = alone(place, script)
        else:
            done = place.run(
                "--total-nodes", "4", "--tasks-per-node", "1", "--cpus-per-task", "1", name, script
            )
        assert done.returncode == 0, done.stderr
        said[name] = printed(done.stdout)
    assert said["python"][0].count(",") > 50
    assert said["python"] == said["python-pt"] == said["python-ws"]


def alone(place: Sandbox, script: str) -> "subprocess.CompletedProcess[str]":
    """`python run.py`."""
    environment = {
        **os.environ,
        "CSRUN_STATE_DIR": str(place.path / "state"),
        **dict(place.variables),
    }
    return subprocess.run(
        [sys.executable, script],
        cwd=place.path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=STALL_S,
    )
