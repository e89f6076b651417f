"""Trainings in mixed precision: checkpoints with the loss's scale, events, changes of precision."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.two_classes import eval_input, summaries, train_input, warnings

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

pytestmark = pytest.mark.usefixtures("own_folder")

SCALED = {"loss_scaling_factor": "dynamic", "steps_per_increase": 4}
KEYS = "loss_scale", "steps_since_rescale", "overflows_since_rescale"


def model_fn(features, labels, mode, params):
    logits = nn.Dense(2, name="out")(nn.Dense(5, activation="tanh", name="hidden")(features))
    loss = nn.softmax_cross_entropy(logits, labels)
    train_op = nn.Adam(0.02, **params).minimize(loss)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def estimator(folder, precision="mixed_float16", params=SCALED):
    config = CSRunConfig(save_checkpoints_steps=100, log_steps=3, precision=precision)
    return CerebrasEstimator(model_fn, folder, config, params)


def train(folder, max_steps, **options):
    """The tensors of the last checkpoint."""
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


def test_an_overflow_at_the_smallest_scale_ends_the_training(tmp_path):
    most = {"initial_loss_scale": 2.0**40, "max_loss_scale": 2.0**40, "min_loss_scale": 2.0**40}
    with pytest.raises(CsrunError, match="Minimum loss scale threshold was reached"):
        train(tmp_path, 6, params={**SCALED, **most})
