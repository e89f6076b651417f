"""num_csx of a PyTorch script: several CS systems share each batch of its loop."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Sandbox
from support.pages import CHECKOUT
from support.sites import STREAMING_8, separate_site

pytest.importorskip("torch")

PLAIN = CHECKOUT / "tests" / "support" / "plain_torch" / "cerebras_torch.py"
Words = tuple[str, ...]
LAYOUT: Words = ("--site", "streaming-8", "--total-nodes", "3", "--tasks-per-node", "1")
MACHINES: Words = ("--site", "separate.yaml", "--total-nodes", "4", "--tasks-per-node", "1")
SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

folder, size, rate, systems = sys.argv[1], *map(float, (*sys.argv[2:4], sys.argv[5]))
parts = {"micro_batch_size": int(size)} if size else {}
torch.manual_seed(1)
cbtorch.initialize(model_dir=folder, num_csx=int(systems), **parts)
x, y = torch.randn(44, 6, dtype=torch.float64), torch.randint(4, (44,))
layers = nn.Linear(6, 9), nn.Tanh(), nn.Dropout(rate), nn.Linear(9, 4)
model = cbtorch.module(nn.Sequential(*layers).double())
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
train = cbtorch.dataloader(DataLoader(TensorDataset(x, y), 16))  # the last batch has 12
val = cbtorch.dataloader(DataLoader(TensorDataset(x[:20], y[:20]), 8))
found = []
with cbtorch.Session(model, optimizer, None, mode="train"):
    for epoch in range(3):
        model.train()
        for a, b in train:
            optimizer.zero_grad()
            out = model(a)
            loss = ((out - nn.functional.one_hot(b, 4)) ** 2).sum() / len(b)
            loss = loss + nn.functional.cross_entropy(out, b, ignore_index=0)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            found.append(norm.item() if epoch == 1 else norm)
            found.append(model[0].weight.grad.norm().item())
            optimizer.step()
            found.append(loss.detach())
        model.eval()
        with torch.no_grad():
            for a, b in val:
                found += [(model(a).argmax(1) == b).sum(), model(a)[-1, 0]]
cbtorch.master_print("found", [float(each) for each in found])
"""


def numbers(text: str) -> list[float]:
    """What the script says that it has found."""
    (found,) = re.findall(r"^found \[(.*)\]$", text, re.MULTILINE)
    return [float(each) for each in found.split(",")]


def words(folder: str, systems: int, size: int = 0, rate: float = 0.0) -> list[str]:
    """Those of the script, among which the launcher finds the number of systems."""
    return [folder, str(size), str(rate), "--num_csx", str(systems)]


def in_job(
    place: Sandbox, systems: int, size: int = 0, rate: float = 0.0, layout: Words = LAYOUT
) -> list[float]:
    (place.path / "script.py").write_text("import cerebras_torch as cbtorch\n" + SCRIPT)
    folder = f"with-{len(list(place.path.iterdir()))}"
    done = place.run(*layout, "python-ws", "script.py", *words(folder, systems, size, rate))
    assert done.returncode == 0, done.stderr
    return numbers(done.stdout)


def test_what_a_loop_reads_of_two_systems_is_pytorchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a shorter last batch, evaluations, and means of the user's own."""
    found = in_job(Sandbox(tmp_path), 2)
    spec = importlib.util.spec_from_file_location("plain", PLAIN)
    assert spec is not None
    assert spec.loader is not None
    plain: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    monkeypatch.setattr("sys.argv", ["script.py", *words(str(tmp_path / "plain"), 1)])
    exec(SCRIPT, {"cbtorch": plain})
    expected = numbers(capsys.readouterr().out)
    assert len(expected) == 3 * (3 * 3 + 2 * 3)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_systems_and_micro_batches_have_the_masks_of_one(tmp_path: Path) -> None:
    """And on machines of their own, with a SwarmX task between, the bits of one machine."""
    place = Sandbox(tmp_path)
    expected = in_job(place, 1, rate=0.3)
    found = in_job(place, 4, size=2, rate=0.3)
    assert found == pytest.approx(expected, rel=1e-9)
    separate_site(tmp_path, shipped=STREAMING_8)
    assert in_job(place, 4, size=2, rate=0.3, layout=MACHINES) == found
