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

if not os.environ.get("CSRUN_MODELZOO"):  # before the slow imports
    pytest.skip("CSRUN_MODELZOO names no checkout of R_1.6.1", allow_module_level=True)
pytest.importorskip("tensorflow")

from support.modelzoo_records import write_run

CHECKOUT = os.environ["CSRUN_MODELZOO"]
SUPPORT = Path(__file__).parents[1] / "support"
LIMIT_S = 900

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.filterwarnings("ignore"),
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
WSE = (sys.executable, "-m", "csrun.cli.csrun_wse")
JOB = (*WSE, "--total-nodes", "3", "python")
STREAMING = (*WSE, "--total-nodes", "4", "python-ws")
#: The original's line for weight streaming on 14 nodes: 98 tasks.
QUICKSTART = (
    *WSE,
    *("--total-nodes=14", "--tasks-per-node=8", "--cpus-per-task=16", "--single-task-nodes=2"),
    *("--cyclic", "python-ws"),
)
FLOAT32 = {"mixed_precision": False}
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


def script_of(name: str) -> str:
    return f"{CHECKOUT}/modelzoo/transformers/tf/{name}/run.py"


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


def test_gpt2_trains_evaluates_and_resumes_in_a_job_as_alone(tmp_path: Path, state: str) -> None:
    """From shuffled records, in the mixed precision that its params ask for."""
    write_run(CHECKOUT, "gpt2", tmp_path, {"train_input": {"shuffle": True}})
    common = (script_of("gpt2"), "-p", "params.yaml", "--mode")
    job = (*STREAMING, *common)
    system = ("--cs_ip", "127.0.0.2")
    alone = run(tmp_path, *ALONE, *common, "train", "-o", "alone", "--max_steps", "6")
    assert "Keras's mixed_float16: numbers are stored as float16" in alone
    first = run(tmp_path, *job, "train", "-o", "job", "--max_steps", "4", *system)
    second = run(tmp_path, *job, "train", "-o", "job", "--max_steps", "6", *system)
    assert losses(alone) == losses(first) + losses(second)
    assert [step for step, _ in losses(alone)] == list("123456")
    found = [
        run(tmp_path, *line, "eval", "-o", folder, "--eval_steps", "3", *system)
        for line, folder in ((job, "job"), ((*ALONE, *common), "alone"))
    ]
    metrics = [re.search(r"Saving dict for global step 6: (.*)", log)[1] for log in found]
    assert metrics[0] == metrics[1]
    assert "eval/lm_perplexity = " in metrics[0]
    (path,) = (tmp_path / "job").glob("model-ckpt-6.json")
    assert "steps_since_rescale" in path.read_text()


@pytest.mark.parametrize("name", ["gpt2", "bert", "gptj"])
def test_losses_of_a_job_are_those_of_a_session(name: str, tmp_path: Path, state: str) -> None:
    """BERT's padding has labels of -1, which TensorFlow refuses on a CPU, unless use_vsl is off."""
    model = FLOAT32 | ({"use_vsl": False} if name == "bert" else {})
    write_run(CHECKOUT, name, tmp_path, {"model": model})
    words = (script_of(name), "-p", "params.yaml", "--mode", "train", "-o", "job")
    log = run(tmp_path, *JOB, *words, "--max_steps", "4", "--cs_ip", "127.0.0.1")
    reference = SUPPORT / "modelzoo_losses.py"
    said = run(tmp_path, sys.executable, str(reference), CHECKOUT, name, "params.yaml", "job", "4")
    wanted = json.loads(re.search(r"RESULTS (.*)", said)[1])
    assert [float(loss) for _, loss in losses(log)] == pytest.approx(wanted, rel=1e-5)


def test_bert_trains_with_shipped_options(tmp_path: Path, state: str) -> None:
    """Dropout, sequences of variable length in buckets, and replicas, in a job as alone."""
    dropout = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    changes = {"train_input": {"shuffle": True, "buckets": [9, 12]}, "model": dropout}
    write_run(CHECKOUT, "bert", tmp_path, changes)
    words = (script_of("bert"), "-p", "params.yaml", "--mode", "train", "--max_steps", "4")
    alone = run(tmp_path, *ALONE, *words, "-o", "alone")
    job = run(tmp_path, *JOB, *words, "-o", "job", "--cs_ip", "127.0.0.1", "--multireplica")
    assert losses(alone) == losses(job)
    assert len(losses(job)) == 4


def test_gptj_trains_by_the_quickstart_line(tmp_path: Path, state: str) -> None:
    write_run(CHECKOUT, "gptj", tmp_path, {})
    words = (script_of("gptj"), "--params", "params.yaml", "--mode", "train", "--max_steps", "3")
    job = run(tmp_path, *QUICKSTART, *words, "-o", "job", "--cs_ip", "127.0.0.2")
    assert "all 98 tasks started after" in job
    assert losses(job) == losses(run(tmp_path, *ALONE, *words, "-o", "alone"))
