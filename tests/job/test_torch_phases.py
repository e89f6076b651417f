"""Killed and resumed jobs: layers unfrozen in phases, buffers that forward uses as switches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

PLAIN = Path(__file__).parents[1] / "support" / "plain_torch"
STEPS = 24  # three passes
SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

kind, killed_at = sys.argv[1], int(sys.argv[2])


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 4)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.last(self.quantized(self.middle(self.first(x).tanh())).tanh())

    def quantized(self, x):
        return x


class Switched(Plain):  # the first step sets shift and codes, all steps move the codes
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(6))
        self.register_buffer("is_set", torch.tensor(False))
        self.register_buffer("codes", torch.zeros(5, 6))

    def quantized(self, x):
        if self.training and not self.is_set:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.codes.copy_(x[:5])
            self.is_set.fill_(True)
        x = x + self.shift
        near = (x[:, None] - self.codes).square().sum(2).argmin(1)
        if self.training:
            hits = nn.functional.one_hot(near, 5).to(x.dtype)
            with torch.no_grad():
                self.codes.lerp_(hits.t() @ x / hits.sum(0).clamp(min=1)[:, None], 0.1)
        return x + (self.codes[near] - x).detach() * (0.1 if self.steps > 3 else 0.0)


torch.manual_seed(0)
cbtorch.initialize(model_dir="model_dir", save_checkpoints_steps=5)
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,)))
model = {"plain": Plain, "switched": Switched}[kind]()
model.first.requires_grad_(False)
model.middle.requires_grad_(False)
model = cbtorch.module(model)
own = [p for name, p in model.named_parameters() if not name.startswith("first")]
optimizer = torch.optim.AdamW(own, lr=0.02)
loader = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
losses = []
with cbtorch.Session(model, optimizer, mode="train"):
    for epoch in range(3):
        for x, y in loader:
            if int(model.steps) == 6:
                model.middle.requires_grad_(True)
            if int(model.steps) == 13:
                added = model.first.requires_grad_(True)
                optimizer.add_param_group({"params": added.parameters(), "lr": 0.005})
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if len(losses) == killed_at:
                loss.item()
                os.kill(os.getpid(), signal.SIGKILL)
steps = [int(optimizer.state[p]["step"]) for p in model.parameters() if p in optimizer.state]
print("losses", *map(float, losses))
print("steps", int(model.steps), *steps)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "interpreter", "killed_at"),
    [("plain", "python-pt", 11), ("switched", "python-ws", 18)],
)
def test_phases_are_pytorchs_and_a_killed_job_goes_on_in_its_phase(
    tmp_path: Path, kind: str, interpreter: str, killed_at: int
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    alone = {**os.environ, "PYTHONPATH": str(PLAIN)}
    plain = subprocess.run(
        [sys.executable, script, kind, "0"], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    expected = said(plain.stdout)

    def run(folder: str, killed_at: int, *words: str, command: str = "csrun_wse") -> object:
        place = Sandbox(tmp_path / folder)
        place.path.mkdir(exist_ok=True)
        done = place.run(*words, place.script(SCRIPT), kind, str(killed_at), command=command)
        path = place.path / "model_dir" / f"model-ckpt-{STEPS}.safetensors"
        return (
            done.returncode,
            said(done.stdout),
            path.read_bytes() if path.exists() else done.stderr,
        )

    whole = run("whole", 0, "python", command="csrun_cpu")
    assert isinstance(whole, tuple)
    assert whole[0] == 0, whole
    assert whole[1]["steps"] == expected["steps"]
    assert whole[1]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    killed = run("job", killed_at, *TWO_STREAMERS, interpreter)
    assert isinstance(killed, tuple)
    assert killed[:2] == (137, {}), killed
    assert run("job", 0, *TWO_STREAMERS, interpreter) == whole


def said(output: str) -> dict[str, list[float]]:
    """Numbers that the script has printed, by name."""
    lines = (line.split() for line in output.splitlines())
    return {name: list(map(float, rest)) for name, *rest in lines if name in ("losses", "steps")}
