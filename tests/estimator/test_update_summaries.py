"""Statistics of updates in the events; SGD's gradients are differences of weights."""

import logging

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.two_classes import FEATURES, LABELS, summaries

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

pytestmark = pytest.mark.usefixtures("own_folder")

ALL = {"log_summaries": True, "log_grads": True, "log_hists": True, "ws_summary": True}


def input_fn(params):
    """Input whose first of six features is always zero."""
    features = FEATURES * np.float32([1, 1, 0, 1, 1, 1])
    return Dataset.from_arrays(features, LABELS).repeat().batch(8, drop_remainder=True)


def model_fn(features, labels, mode, params):
    logits = nn.Dense(2, name="out")(nn.Dense(5, activation="tanh", name="hidden")(features))
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.SGD(1.0, **params).minimize(loss))


def train(folder, params, steps=3, **options):
    config = CSRunConfig(save_checkpoints_steps=1, log_steps=1, **options)
    CerebrasEstimator(model_fn, folder, config, params).train(input_fn, max_steps=steps)
    found = summaries(folder).items()
    return {key: value for key, value in found if "/" in key[1] and "seconds/" not in key[1]}


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_numbers_of_the_updates(tmp_path, precision):
    scaled = {"loss_scaling_factor": 64.0} if precision != "float32" else {"clip_norm": 1e6}
    events = train(tmp_path, {**ALL, **scaled}, precision=precision)
    before, after = (load_file(tmp_path / f"model-ckpt-{step}.safetensors") for step in (2, 3))
    gradients = {name: before[name] - after[name] for name in ("hidden/kernel", "out/bias")}
    scale = scaled.get("loss_scaling_factor", 1.0)
    tolerance = 1e-4 if precision == "float32" else 1e-2

    def of(tag):
        return events[3, tag].simple_value

    names = [name for name in before if name.endswith(("kernel", "bias"))]
    every = np.concatenate([(before[n] - after[n]).ravel() for n in names])
    assert of("train/lr") == 1.0
    norm = np.linalg.norm(every)
    assert of("train/unclipped_grad_norm") == pytest.approx(norm, rel=tolerance)
    weights = np.concatenate([after[n].ravel() for n in names])
    assert of("train/params_norm") == pytest.approx(np.linalg.norm(weights), rel=1e-5)
    assert of("train/grad_num_zeros") == 5
    assert of("sparsity_kernel_grads/hidden/kernel") == pytest.approx(5 / 30)
    assert of("sparsity_bias_grads/out/bias") == 0
    for family, name in (("kernel_grads", "hidden/kernel"), ("bias_grads", "out/bias")):
        expected = scale * np.linalg.norm(gradients[name])
        assert of(f"norm_{family}/{name}") == pytest.approx(expected, rel=tolerance)
        assert of(f"denormal_{family}/{name}") == 0
    powers = events[3, "kernel_grads/hidden/kernel"].histo
    assert (powers.num, powers.min) == (30, -50)
    assert 2**powers.max == pytest.approx(scale * abs(gradients["hidden/kernel"]).max(), rel=0.01)


def test_keys_without_effect_say_so(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    assert not train(tmp_path / "grads", {"log_grads": True, "clip_norm": 1.0}, steps=1)
    assert "optimizer.log_grads has no effect without optimizer.log_summaries" in caplog.messages
    events = train(tmp_path / "norms", {**ALL, "log_hists": False}, steps=1)
    assert {tag for _, tag in events} == {"train/lr", "train/params_norm"}
    assert [line for line in caplog.messages if "gradients are not measured" in line]
