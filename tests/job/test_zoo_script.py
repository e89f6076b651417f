"""A script in the form of the Model Zoo's, in plain PyTorch, in one process and in a job."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "support" / "zoo_script.py"
LIMIT_S = 280
PARAMS = {
    "input": {"samples": 80, "batch_size": 8, "length": 6, "vocab_size": 20, "shuffle_seed": 4},
    "model": {"vocab_size": 20, "hidden_size": 16},
    "optimizer": {
        "learning_rate": [[0.0, 0.01, 5], [0.02, 0.001, 20]],
        "max_gradient_norm": 0.5,
        "loss_scaling_factor": "dynamic",
    },
    "runconfig": {"max_steps": 16, "eval_steps": 5, "checkpoint_steps": 8, "seed": 2},
}
ALONE = (sys.executable,)
#: A chief and three streamers, which ten batches are no multiple of.
JOB = (
    *(sys.executable, "-m", "csrun.cli.csrun_wse", "--total-nodes", "3", "--tasks-per-node", "3"),
    "python-ws",
)
CS = ("--cs_ip", "127.0.0.2")


def run(folder, *arguments, by=ALONE):
    """What the script prints."""
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    done = subprocess.run(
        [*by, str(SCRIPT), "--params", "params.yaml", *arguments],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(said):
    return {int(n): float(x) for n, x in re.findall(r"\| \w+ Step=(\d+), Loss=([\d.]+)", said)}


def checkpoint(folder, name, step=16):
    return torch.load(folder / name / f"checkpoint_{step}.mdl")


TRAIN = ("--mode", "train", "--model_dir")


@pytest.mark.timeout(600)
def test_a_script_of_the_model_zoos_form_trains_as_in_plain_pytorch(tmp_path, state):
    """Two passes of ten batches, whose data set says that they are eighty."""
    plain, job = run(tmp_path, *TRAIN, "cpu"), run(tmp_path, *TRAIN, "job", *CS, by=JOB)
    assert list(losses(plain)) == list(range(1, 17))
    assert losses(job) == pytest.approx(losses(plain), rel=1e-5)
    saved, own = checkpoint(tmp_path, "job"), checkpoint(tmp_path, "cpu")
    torch.testing.assert_close(saved["model"], own["model"], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_resumes_evaluates_and_compiles(tmp_path, state):
    run(tmp_path, *TRAIN, "cpu")
    again = ("--checkpoint_path", "cpu/checkpoint_8.mdl")
    resumed = run(tmp_path, *TRAIN, "again", *again, *CS)
    assert list(losses(resumed)) == list(range(9, 17))
    wanted = run(tmp_path, *TRAIN, "cpu_again", *again)
    assert losses(resumed) == pytest.approx(losses(wanted), rel=1e-5)
    evaluate = ("--mode", "eval", "--checkpoint_path", "cpu/checkpoint_16.mdl", "--model_dir", "e")
    found, wanted = run(tmp_path, *evaluate, *CS), run(tmp_path, *evaluate)
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-5)
    assert found.splitlines()[-1] == wanted.splitlines()[-1]
    assert "compiled: True" in run(tmp_path, *TRAIN, "compiled", "--compile_only")
