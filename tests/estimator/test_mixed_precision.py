"""Trainings in mixed precision: loss scale in checkpoints, events, changes of precision."""

import logging
import re

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.two_classes import eval_input, summaries, train_input, warnings

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from csrun.executable import bfloat16, machine_code
from csrun.records import checkpoints

pytestmark = pytest.mark.usefixtures("own_folder")

SCALED = {"loss_scaling_factor": "dynamic", "steps_per_increase": 4}
KEYS = "loss_scale", "steps_since_rescale", "overflows_since_rescale"


def model_fn(features, labels, mode, params):
    logits = nn.Dense(2, name="out")(nn.Dense(5, activation="tanh", name="hidden")(features))
    loss = nn.softmax_cross_entropy(logits, labels)
    train_op = nn.Adam(0.02, **params).minimize(loss)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def estimator(folder, precision="mixed_float16", params=SCALED, **others):
    config = CSRunConfig(save_checkpoints_steps=100, log_steps=3, precision=precision, **others)
    return CerebrasEstimator(model_fn, folder, config, params)


def train(folder, max_steps, **options):
    """Train; return the tensors of the last checkpoint."""
    estimator(folder, **options).train(train_input, max_steps=max_steps)
    return load_file(folder / f"model-ckpt-{max_steps}.safetensors")


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16", "mixed_cbfloat16"])
def test_a_resumed_training_has_the_bits_and_the_scale_of_one_that_went_on(tmp_path, precision):
    params = {**SCALED, "initial_loss_scale": 2.0**10}
    options = {"precision": precision, "params": params}
    expected = train(tmp_path / "whole", 10, **options)
    train(tmp_path / "parts", 3, **options)
    found = train(tmp_path / "parts", 10, **options)
    assert {n: v.tobytes() for n, v in found.items()} == {
        n: v.tobytes() for n, v in expected.items()
    }
    assert [float(found[key]) for key in KEYS] == [2.0**12, 2, 0]
    assert found["hidden/kernel"].dtype == np.float32
    events = summaries(tmp_path / "parts")
    assert events[9, "train/loss_scale"].simple_value == 2.0**12
    assert events[9, "train/unclipped_grad_norm"].simple_value > 0


INSTRUCTIONS = bfloat16.fastest() if machine_code.is_supported() else None


@pytest.mark.skipif(INSTRUCTIONS is None, reason="this CPU has no fast products of bfloat16")
def test_a_training_with_the_cpus_products_goes_on_without_them(tmp_path, caplog):
    options = {"precision": "mixed_bfloat16", "params": {}}
    expected = train(tmp_path / "float32", 6, products="float32", **options)
    train(tmp_path / "parts", 3, **options)
    assert not warnings(caplog)
    found = train(tmp_path / "parts", 6, products="float32", **options)
    (line,) = warnings(caplog)
    assert f"kernels was llvm, products {INSTRUCTIONS} and is llvm, products own" in line
    atol = 0 if INSTRUCTIONS == "avx512_bf16" else 1e-5  # AMX has another order of sums
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=atol, err_msg=name)


def test_another_precision_goes_on_with_a_line_that_says_so(tmp_path, caplog):
    train(tmp_path, 3, precision="float32", params={})
    found = train(tmp_path, 6)
    assert [float(found[key]) for key in KEYS] == [2.0**15, 3, 0]
    train(tmp_path, 9, precision="float32", params={})
    assert [line for line in warnings(caplog) if line.startswith("precision")] == [
        "precision was float32 when model-ckpt-3 was written and is mixed_float16 now: the "
        "training continues with it",
        "precision was mixed_float16 when model-ckpt-6 was written and is float32 now: the "
        "training continues with it",
    ]


def test_an_evaluation_reads_a_checkpoint_with_a_scale(tmp_path):
    train(tmp_path, 20)
    halves = estimator(tmp_path).evaluate(eval_input)["loss"]
    whole = estimator(tmp_path, "float32").evaluate(eval_input)["loss"]
    assert halves == pytest.approx(whole, rel=1e-2)
    assert halves != whole
    weights = checkpoints.latest(tmp_path).weights  # of a state_dict
    assert weights
    assert not {*KEYS, "skipped_steps"} & {*weights}


def test_an_overflow_at_the_smallest_scale_ends_the_training(tmp_path):
    most = {"initial_loss_scale": 2.0**40, "max_loss_scale": 2.0**40, "min_loss_scale": 2.0**40}
    with pytest.raises(CsrunError, match="Minimum loss scale threshold was reached"):
        train(tmp_path, 6, params={**SCALED, **most})


RANGES = "ranges/gradient/out/kernel/overflows", "ranges/weight/hidden/kernel/zeros"


def test_ranges_are_reported_every_so_often_and_where_the_scale_halves(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    params = {**SCALED, "initial_loss_scale": 2.0**24, "max_loss_scale": 2.0**24}
    config = CSRunConfig(precision="mixed_float16", number_ranges=8, log_steps=100)
    model = CerebrasEstimator(model_fn, tmp_path, config, params)
    model.train(train_input, max_steps=16)
    events = summaries(tmp_path)
    lines = [line for line in caplog.messages if line.startswith("Loss scale ")]
    halved = {int(line.split("global step ")[1].split(",")[0]) for line in lines if "skip" in line}
    assert halved
    place = (
        r"first in layer (out|hidden|model) \(.+\), operator \w+, .*test_mixed_precision\.py:\d+"
    )
    named = re.compile(rf"skipped.*, {place}(, in the gradient of \1/\w+)?$")
    assert all(named.search(line) for line in lines if "skipped" in line)
    for tag in RANGES:
        assert {step for step, name in events if name == tag} == {8, 16} | halved
    overflows = [name for name in dict.fromkeys(n for _, n in events) if "/overflows" in name]
    for step in halved:
        assert any(events[step, name].simple_value > 0 for name in overflows)
    page = (tmp_path / "number_ranges.html").read_text()
    assert "Number ranges at global step 16" in page
    assert {"hidden/kernel", "out/bias"} <= set(re.findall(r"<td>([a-z/]+)<", page))


def test_without_gradients_in_the_store_weights_are_measured(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    config = CSRunConfig(precision="mixed_bfloat16", number_ranges=4, log_steps=100)
    model = CerebrasEstimator(model_fn, tmp_path, config, {})
    model.train(train_input, max_steps=4)
    assert any("only weights and activations are measured" in line for line in caplog.messages)
    tags = {name for step, name in summaries(tmp_path) if step == 4}
    assert {name.split("/")[1] for name in tags if name.startswith("ranges/")} == {
        "weight",
        "activation",
    }


def test_the_end_of_the_scale_names_the_layer(tmp_path):
    most = {"initial_loss_scale": 2.0**40, "max_loss_scale": 2.0**40, "min_loss_scale": 2.0**40}
    config = CSRunConfig(precision="mixed_float16")
    model = CerebrasEstimator(model_fn, tmp_path, config, {**SCALED, **most})
    with pytest.raises(CsrunError, match=r"values: .* at step 1, first in layer out \(\w+.*\), in"):
        model.train(train_input, max_steps=3)


def test_a_float32_run_has_no_ranges(tmp_path, caplog):
    model = CerebrasEstimator(model_fn, tmp_path, CSRunConfig(number_ranges=1), {})
    model.train(train_input, max_steps=1)
    assert [line for line in warnings(caplog) if "number_ranges has no effect" in line]
    assert not (tmp_path / "number_ranges.html").exists()
