"""A run.py that does not read its command line: the launcher's options apply to it anyway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Sandbox

SCRIPT = """
import numpy as np
from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec

def input_fn(params):
    return Dataset.from_arrays(np.ones((64, 4), "f"), np.zeros(64, "i")).repeat().batch(16)

def model_fn(features, labels, mode, params):
    loss = nn.softmax_cross_entropy(nn.Dense(2, name="out")(features), labels)
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.SGD(0.1).minimize(loss))

results = CerebrasEstimator(model_fn, "model_dir").train(input_fn, max_steps=20)
print("final loss", results["loss"])
"""
COMPILED = "INFO:csrun:compile_only: the model was compiled for train; no step was run"
VALIDATED = "INFO:csrun:validate_only: the model was validated for train; no step was run"


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    place = Sandbox(tmp_path)
    place.script(SCRIPT)
    return place


def on_cpu_node(place: Sandbox, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "csrun.cli.csrun_cpu", *words],
        cwd=place.path, env={**os.environ, "CSRUN_STATE_DIR": str(place.path / "state")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def checkpoints(place: Sandbox) -> list[Path]:
    return list(place.path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--compile_only",), COMPILED), (("--mode=validate_only",), VALIDATED)],
)
def test_csrun_cpu_compiles_or_validates_and_takes_no_step(
    place: Sandbox, words: tuple[str, ...], said: str
) -> None:
    done = on_cpu_node(place, "python-ws", "run.py", *words)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == said
    assert "final loss" not in done.stdout
    assert not checkpoints(place)
    assert bool(list(place.path.glob("model_dir/tfcs_*/program.py"))) == (said == COMPILED)


def test_every_task_of_a_job_ends_after_the_compile(place: Sandbox) -> None:
    done = place.run("--total-nodes", "3", "python-ws", "run.py", "--compile_only")
    said = done.stdout.splitlines()
    assert done.returncode == 0
    assert said.count(COMPILED) == 1
    assert said[-1] == COMPILED
    assert not checkpoints(place)


@pytest.mark.slow
def test_the_words_of_one_command_do_not_reach_the_next(
    place: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_PREPARATION", "compile_only")
    done = on_cpu_node(place, "python", "run.py")
    assert "final loss" in done.stdout
    assert len(checkpoints(place)) == 2  # of step 0 and of the last
    job = place.run("--total-nodes", "1", "--tasks-per-node", "1", "python", "run.py")
    assert "nothing to train" in job.stdout


@pytest.mark.slow
def test_an_analysis_measures_and_takes_no_step(place: Sandbox) -> None:
    done = place.run("python", "run.py", "--compile_only", command="cs_input_analyzer")
    assert done.returncode == 0, done.stderr
    assert COMPILED in done.stderr
    assert (place.path / "input_analysis.json").exists()
    assert not checkpoints(place)


TORCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

cbtorch.initialize()
model = cbtorch.module(torch.nn.Linear(6, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(96, 6), torch.randint(4, (96,)))
loader = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
with cbtorch.Session(model, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
print("final loss", loss.item())
"""


@pytest.fixture
def torch_place(tmp_path: Path) -> Sandbox:
    pytest.importorskip("torch", reason="the front end is PyTorch's")
    place = Sandbox(tmp_path)
    place.script(TORCH)
    return place


def test_every_task_of_a_pytorch_job_ends_after_the_compile(torch_place: Sandbox) -> None:
    place = torch_place
    done = place.run("--total-nodes", "3", "python-ws", "run.py", "--compile_only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count(COMPILED) == 1
    assert "final loss" not in done.stdout
    assert not checkpoints(place)


@pytest.mark.slow  # it measures for some seconds
@pytest.mark.timeout(600)
def test_a_dataloader_is_analysed(torch_place: Sandbox) -> None:
    place = torch_place
    words = ("python-pt", "run.py", "--validate_only")
    with place.start(*words, command="cs_input_analyzer") as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert "To run it" in out
    assert (place.path / "input_analysis.json").exists()
    assert not (place.path / "model_dir").exists()
