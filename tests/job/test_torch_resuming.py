"""PyTorch jobs resumed from a checkpoint that is followed by an evaluation."""

from pathlib import Path

import pytest
from support.fc_mnist import TWO_STREAMERS
from support.jobs import Sandbox

pytest.importorskip("torch")

PASSES, STEPS = 3, 10  # a checkpoint every pass
SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
import cerebras_torch as cbtorch

order, killed_behind = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
cbtorch.initialize(save_checkpoints_steps=10)
x = torch.randn(80, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
model = cbtorch.module(nn.Linear(8, 2))
sampler = WeightedRandomSampler(torch.rand(80), 80)
options = {"shuffled": {"shuffle": True}, "weighted": {"sampler": sampler}}[order]
train = cbtorch.dataloader(DataLoader(data, 8, **options))
test = cbtorch.dataloader(DataLoader(data, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
with cbtorch.Session(model, optimizer, criterion, mode="train"):
    for epoch in range(3):
        for a, b in train:
            optimizer.zero_grad()
            criterion(model(a), b).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print("pass", epoch, sum(criterion(model(a), b).item() for a, b in test))
        model.train()
        if epoch == killed_behind:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("interpreter", "order"), [("python-ws", "shuffled"), ("python-pt", "weighted")]
)
def test_a_job_killed_at_the_end_of_a_pass_resumes_and_a_finished_one_runs_again(
    tmp_path: Path, interpreter: str, order: str
) -> None:
    def run(folder: str, killed_behind: int, *words: str, command: str = "csrun_wse") -> object:
        place = Sandbox(tmp_path / folder)
        place.path.mkdir(exist_ok=True)
        script = place.script(SCRIPT)
        done = place.run(*words, script, order, str(killed_behind), command=command)
        said = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
        path = place.path / "model_dir" / f"model-ckpt-{PASSES * STEPS}.safetensors"
        return done.returncode, said, path.read_bytes() if path.exists() else done.stderr

    whole = run("whole", -1, interpreter, command="csrun_cpu")
    assert isinstance(whole, tuple)
    assert (whole[0], len(whole[1])) == (0, PASSES), whole
    killed = run("job", PASSES - 2, *TWO_STREAMERS, interpreter)
    assert isinstance(killed, tuple)
    assert killed[:2] == (137, whole[1][:-1]), killed
    assert run("job", -1, *TWO_STREAMERS, interpreter) == whole
    if interpreter == "python-ws":  # again, though it is finished
        assert run("job", -1, *TWO_STREAMERS, interpreter) == whole
