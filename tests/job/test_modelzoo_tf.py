"""TensorFlow scripts of the user's own Model Zoo checkout (tag R_1.6.1), unchanged.

CSRUN_MODELZOO names the checkout; stand-ins for packages of its time are on PYTHONPATH.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tensorflow")

CHECKOUT = os.environ.get("CSRUN_MODELZOO", "")
SUPPORT = Path(__file__).parents[1] / "support"
LIMIT_S = 280

pytestmark = [
    pytest.mark.skipif(not CHECKOUT, reason="CSRUN_MODELZOO names no checkout of R_1.6.1"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
FC_MNIST = {
    "train_input": {"shuffle": True, "data_dir": "data", "batch_size": 64},
    "model": {"hidden_sizes": [50, 30], "dropout": 0.0, "activation_fn": "relu"},
    "optimizer": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "runconfig": {
        "max_steps": 20,
        "save_checkpoints_steps": 1000,
        "keep_checkpoint_max": 2,
        "log_step_count_steps": 5,
        "multireplica": False,
    },
}
JOB = (sys.executable, "-m", "csrun.cli.csrun_wse", "--total-nodes", "3", "python")
ALONE = (sys.executable,)


def run(folder: Path, *words: str) -> str:
    """Run a command with the stand-ins; return what it prints."""
    paths = os.pathsep.join(
        filter(None, [str(SUPPORT / "modelzoo_stubs"), os.environ.get("PYTHONPATH")])
    )
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(log: str) -> list[tuple[str, str]]:
    return re.findall(r"global_step = (\d+), loss = ([\d.]+)", log)


def test_fc_mnist_trains_and_evaluates_in_a_job_as_alone(tmp_path: Path, state: str) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(FC_MNIST))
    script = f"{CHECKOUT}/modelzoo/fc_mnist/tf/run.py"
    common = (script, "-p", "params.yaml", "--mode")
    alone = run(tmp_path, *ALONE, *common, "train", "-o", "alone")
    job = run(tmp_path, *JOB, *common, "train", "-o", "job", "--cs_ip", "127.0.0.1")
    assert losses(alone) == losses(job)
    assert [step for step, _ in losses(job)] == ["1", "5", "10", "15", "20"]
    evaluated = run(tmp_path, *JOB, *common, "eval", "-o", "job", "--eval_steps", "4")
    assert re.search(r"Saving dict for global step 20: accuracy = 0\.\d+, loss = ", evaluated)
    run(tmp_path, *JOB, *common, "train", "-o", "compiled", "--compile_only")


@pytest.mark.parametrize(
    ("name", "optimizer", "steps", "key", "limit"),
    [
        ("fc_mnist", "sgd", 20, "weights", 1e-6),
        ("fc_mnist", "adam", 20, "weights", 1e-6),
        ("gpt2", "sgd", 1, "change", 1e-5),
        ("bert", "sgd", 1, "change", 1e-5),
        ("gptj", "sgd", 1, "change", 1e-5),
        ("gpt2", "shipped", 5, "change", 1e-4),
        ("bert", "shipped", 5, "weights", 1e-6),  # whose first rates are 1e-8 and less
    ],
)
def test_a_model_function_trains_as_in_a_session(
    name: str, optimizer: str, steps: int, key: str, limit: float, tmp_path: Path
) -> None:
    said = run(
        tmp_path,
        sys.executable,
        str(SUPPORT / "modelzoo_tf.py"),
        CHECKOUT,
        name,
        optimizer,
        str(steps),
    )
    found = json.loads(re.search(r"RESULTS (.*)", said)[1])
    assert found[key] <= limit, found
    assert len(found["metrics"]) > 2
