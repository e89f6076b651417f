"""Reference models as jobs: killed, with one and five streamers, and by the original's command."""

import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import yaml
from support.jobs import Sandbox, gone, until
from support.pages import blocks
from support.reference_models import MODELS, SMALL_MODELS, SmallModel, changed

from csrun.params import load

STEPS, EVERY = 120, 20
LAYOUTS = {1: ("3", "1"), 5: ("3", "5")}  # nodes, and tasks on each: streamers, chief and MemoryX


@dataclass(frozen=True)
class ModelPlace(Sandbox):
    """A user's folder with params.yaml, for a reference model."""

    model: str = "gpt2"

    @property
    def script(self) -> str:  # type: ignore[override]
        return str(MODELS / self.model / "run.py")

    def arguments(self, model_dir: str) -> list[str]:
        return [self.script, "--params", "params.yaml", "-o", model_dir]

    def layout(self, streamers: int) -> list[str]:
        nodes, tasks = LAYOUTS[streamers]
        shape = ["--total-nodes", nodes, "--tasks-per-node", tasks, "--cpus-per-task", "1"]
        return [*shape, "python-ws"]

    def checkpoints(self, model_dir: str) -> dict[str, bytes]:
        found = sorted((self.path / model_dir).glob("model-ckpt-*.safetensors"))
        return {path.name: path.read_bytes() for path in found}


def small_params(name: str, folder: Path) -> Any:
    """Params of a small model with dropout."""
    if name == "cnn_mnist":
        from params import Params

        params = load(Params, MODELS / name / "configs" / "params.yaml")
        params = changed(params, "train_input", batch_size=16)
        return changed(params, "model", dropout=0.1, filters=(4, 5), hidden_size=8)
    model: SmallModel = SMALL_MODELS[name]
    return model.params(folder, dropout=0.1, attention_dropout=0.1)


@pytest.fixture(params=[*SMALL_MODELS, "cnn_mnist"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ModelPlace:
    request.getfixturevalue(request.param)
    params = small_params(request.param, tmp_path)
    params = changed(
        params,
        "runconfig",
        max_steps=STEPS,
        save_checkpoints_steps=EVERY,
        keep_checkpoint_max=STEPS,
        log_steps=1,
    )
    plain: Any = msgspec.to_builtins(params)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(plain))
    return ModelPlace(tmp_path, model=request.param)


@pytest.mark.slow
def test_any_number_of_streamers_and_a_kill_give_the_same_bits(place: ModelPlace) -> None:
    done = place.run("--total-nodes", "1", "python", *place.arguments("alone"))
    assert done.returncode == 0, done.stderr
    expected = place.checkpoints("alone")
    assert len(expected) == 1 + STEPS // EVERY
    if place.model == "gpt2":  # one that has all that the others have, in the other layouts, too
        done = place.run("--total-nodes", "3", "python", *place.arguments("pipelined"))
        assert done.returncode == 0, done.stderr
        assert place.checkpoints("pipelined") == expected
        done = place.run(*place.layout(1), *place.arguments("streamed"))
        assert done.returncode == 0, done.stderr
        assert "Waiting for 1 streamer(s)" in done.stdout
        assert place.checkpoints("streamed") == expected
    with place.start(*place.layout(5), *place.arguments("killed")) as launcher:
        until((place.path / "killed" / f"model-ckpt-{EVERY}.safetensors").exists)
        pids = [child.pid for child in psutil.Process(launcher.pid).children(recursive=True)]
        launcher.send_signal(signal.SIGKILL)
        assert gone(pids)
    assert place.checkpoints("killed").keys() < expected.keys()
    done = place.run(*place.layout(5), *place.arguments("killed"))
    assert done.returncode == 0, done.stderr
    assert "Waiting for 5 streamer(s)" in done.stdout
    assert "Restoring parameters from killed/model-ckpt-" in done.stdout
    assert place.checkpoints("killed") == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_of_98_tasks_trains_gptj_as_it_stands(tmp_path: Path) -> None:
    """In a copy of the model's folder, on the sources of the standard library."""
    folder = tmp_path / "gptj"
    shutil.copytree(MODELS / "gptj", folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    prepare = [sys.executable, str(MODELS / "gpt2" / "prepare_data.py"), "--out", "data"]
    subprocess.run(prepare, cwd=folder, check=True, capture_output=True)
    # Other tests run at once: a second thread of BLAS would wait for their CPU, and take its time.
    params = folder / "configs" / SMALL_MODELS["gptj"].file
    params.write_text(params.read_text().replace("runconfig:\n", "runconfig:\n  threads: 1\n"))
    lines = [
        line for block in blocks((folder / "README.md").read_text()) for line in block.split("\n")
    ]
    (command,) = [line.split() for line in lines if "--total-nodes 14" in line]
    place = Sandbox(folder)
    with place.start(*command[1:], command=command[0]) as process:
        out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert "Waiting for 96 streamer(s)" in out
    trained = re.search(r"Loss for final step: ([\d.]+)\.", out)
    assert trained
    assert float(trained[1]) < 3.0  # a table of bytes has 3.2 nats, one of pairs of them 2.5
    assert (folder / "model_dir" / "model-ckpt-300.safetensors").exists()
