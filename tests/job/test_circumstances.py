"""Ctrl-C, a second run in the same folder, a full disk, no home directory."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, RUN, FcMnist
from support.jobs import STALL_S, until

from csrun.records import checkpoints

EVERY = 50


@pytest.fixture
def endless(place: FcMnist) -> FcMnist:
    place.configure(runconfig__max_steps=MANY_STEPS, runconfig__save_checkpoints_steps=EVERY)
    return place


def test_ctrl_c(endless: FcMnist) -> None:
    """Of one process; a job's is in test_endings.py."""
    with endless.start_cpu() as run:
        until(lambda: any(endless.model_dir.glob("model-ckpt-?00.json")))
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=STALL_S)
    assert run.returncode == 130, err
    found = checkpoints.latest(endless.model_dir)
    assert found is not None
    assert f"Training interrupted: the next run in model_dir resumes from {found.name}" in out + err
    assert "Traceback" not in out + err
    assert sorted(path.name for path in endless.model_dir.glob(".*")) == []
    assert endless.cpu("--max_steps", str(found.step + 1)).returncode == 0


@pytest.mark.slow
def test_one_training_a_folder(endless: FcMnist) -> None:
    with endless.start_wse() as first:
        until(lambda: any(endless.model_dir.glob("model-ckpt-?00.json")))
        for second, who in ((endless.cpu(), "cpu"), (endless.wse(), "wse")):
            assert second.returncode == 2, who
            assert re.search(
                r"error: model_dir model_dir: in use by job 1, process \d+ on \S+; wait",
                second.stderr,
            )
        evaluation = endless.cpu("--mode", "eval", "--eval_steps", "1")
        assert evaluation.returncode == 0, evaluation.stderr
        assert first.poll() is None
        first.kill()
    done = endless.wse("--max_steps", "1")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB: six checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cpu", "wse"])
def test_a_full_disk(endless: FcMnist, small_disk: Path, command: str) -> None:
    endless.configure(
        runconfig__max_steps=MANY_STEPS,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__keep_checkpoint_max=50,
    )
    done = getattr(endless, command)("-o", "disk/model")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "disk full: the checkpoint needs " in done.stderr
    folder = small_disk / "model"
    kept = checkpoints.kept_steps(folder)
    assert kept[:3] == (0, EVERY, 2 * EVERY)
    for step in kept:
        found = checkpoints.open_checkpoint(folder / checkpoints.name_of(step))
        names = dict.fromkeys(found.manifest.tensors)
        assert sum(1 for _ in found.read(names)) == len(names)
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_without_a_home(place: FcMnist) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "HOME"}
    environment["CSRUN_STATE_DIR"] = str(place.path / "state")
    command = [RUN, *place.own(())]
    for launcher in (["-m", "csrun.cli.csrun_wse", "--total-nodes=3", "python-ws"], []):
        done = subprocess.run(
            [sys.executable, *launcher, *command],
            cwd=place.path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_a_training_that_is_finished_has_ended_well(place: FcMnist) -> None:
    """Its times and rates found no place: the checkpoint is what was asked for."""
    place.model_dir.mkdir()
    (place.model_dir / "performance" / "performance.json").mkdir(parents=True)
    done = place.cpu("--max_steps", "2")
    assert done.returncode == 0, done.stderr
    said = "Training finished, but its performance record was not saved: "
    assert said in done.stdout + done.stderr
    assert place.checkpoint(2).exists()
