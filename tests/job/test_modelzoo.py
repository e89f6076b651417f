"""Scripts of the user's own Model Zoo checkout (tag R_1.6.1), unchanged, beside their CPU mode.

CSRUN_MODELZOO names the checkout; stand-ins for packages of its time are on PYTHONPATH.
"""

import json
import os
import re
from pathlib import Path

import pytest

if not os.environ.get("CSRUN_MODELZOO"):  # before the slow imports
    pytest.skip("CSRUN_MODELZOO names no checkout of R_1.6.1", allow_module_level=True)
torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard", reason="the scripts write events with it")

from support.modelzoo_scripts import (  # noqa: E402
    JOB,
    Zoo,
    contents,
    losses,
    tensors,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
]
INPUT = {"data_dir": "data", "batch_size": 128, "drop_last_batch": True, "to_float16": False}
FC_MNIST = {
    "train_input": {**INPUT, "shuffle": True},
    "eval_input": {**INPUT, "shuffle": False},
    "model": {
        "name": "fc_mnist",
        "mixed_precision": False,
        "depth": 4,
        "hidden_size": 50,
        "dropout": 0.0,
        "activation_fn": "relu",
    },
    "optimizer": {
        "optimizer_type": "SGD",
        "learning_rate": 0.01,
        "momentum": 0.9,
        "loss_scaling_factor": 1.0,
    },
    "runconfig": {"max_steps": 30, "checkpoint_steps": 15, "log_steps": 5, "seed": 1},
}


def fc_mnist(folder: Path, params: dict = FC_MNIST) -> Zoo:
    return Zoo(folder, "fc_mnist/pytorch", params)


def test_fc_mnist_trains_and_evaluates_as_in_its_cpu_mode(tmp_path: Path, state: str) -> None:
    before, zoo = contents(), fc_mnist(tmp_path)
    cpu = zoo.run("-m", "train", "-o", "cpu", "--cpu")
    alone = zoo.run("-m", "train", "-o", "alone", "--cs_ip", "127.0.0.1")
    job = zoo.run("-m", "train", "-o", "job", "--cs_ip", "127.0.0.1", by=JOB)
    assert losses(cpu) == losses(alone) == losses(job)
    assert len(losses(cpu)) == 6
    saved = [zoo.checkpoint(run, 30) for run in ("cpu", "alone", "job")]
    for key in ("model", "optimizer"):
        theirs, ours, ours_in_job = (tensors(each[key]) for each in saved)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        torch.testing.assert_close(ours_in_job, ours, rtol=0, atol=0)
    assert saved[1].keys() == saved[0].keys()
    assert (tmp_path / "job/train/params_train.yaml").is_file()
    record = json.loads((tmp_path / "job/performance/performance.json").read_text())
    assert record["total_samples"] == 30 * 128
    assert contents() == before


def test_fc_mnist_evaluates_resumes_and_compiles(tmp_path: Path, state: str) -> None:
    zoo, cs = fc_mnist(tmp_path), ("--cs_ip", "127.0.0.1")
    zoo.run("-m", "train", "-o", "cpu", "--cpu")
    from_15 = ("-m", "train", "--checkpoint_path", "cpu/checkpoint_15.mdl")
    assert losses(zoo.run(*from_15, "-o", "a", "--cpu")) == losses(
        zoo.run(*from_15, "-o", "b", *cs)
    )
    measured = {**FC_MNIST, "model": {**FC_MNIST["model"], "compute_eval_metrics": True}}
    zoo.set(measured)
    evaluated = ("-m", "eval", "-o", "eval", "--checkpoint_path", "cpu/checkpoint_30.mdl")
    values = [
        re.findall(r"(?:accuracy': |Avg Eval. Loss = )([\d.]+)", zoo.run(*evaluated, *how))
        for how in (("--cpu",), cs)
    ]
    assert len(values[0]) == 2
    assert list(map(float, values[1])) == pytest.approx(list(map(float, values[0])), abs=1e-6)
    said = zoo.run("-m", "train", "-o", "compiled", "--compile_only")
    assert "Compile for training completed successfully!" in said
    said = zoo.run("-m", "eval", "-o", "validated", "--validate_only")
    assert "Compile for evaluation completed successfully!" in said


def test_mixed_precision_scales_the_loss_and_resumes(tmp_path: Path, state: str) -> None:
    mixed = {"model": {**FC_MNIST["model"], "mixed_precision": True}}
    scaling = {"loss_scaling_factor": "dynamic", "initial_loss_scale": 2.0**34}
    limits = {"max_loss_scale": 2.0**34, "steps_per_increase": 4}
    optimizer = {**FC_MNIST["optimizer"], **scaling, **limits}
    zoo, cs = fc_mnist(tmp_path, {**FC_MNIST, **mixed, "optimizer": optimizer}), "127.0.0.1"
    whole = zoo.run("-m", "train", "-o", "whole", "--cs_ip", cs)
    job = zoo.run("-m", "train", "-o", "job", "--cs_ip", cs, by=JOB)
    assert losses(whole) == losses(job)
    saved = [zoo.checkpoint(run, 30) for run in ("whole", "job")]
    assert saved[0]["amp"] == saved[1]["amp"]
    assert 0 < saved[0]["amp"]["loss_scale"] < 2.0**34
    torch.testing.assert_close(*(tensors(each["model"]) for each in saved), rtol=0, atol=0)
    cpu = zoo.run("-m", "train", "-o", "cpu", "--cpu")
    ours, theirs = (list(map(float, losses(each).values())) for each in (whole, cpu))
    assert ours[0] == pytest.approx(theirs[0], rel=0.02)
    again = ("-m", "train", "--checkpoint_path", "whole/checkpoint_15.mdl", "-o", "again")
    said = zoo.run(*again, "--cs_ip", cs)
    first = re.search(r"Loss scale .* was (\d+)", said)
    assert first is not None
    assert float(first[1]) == zoo.checkpoint("whole", 15)["amp"]["loss_scale"]
