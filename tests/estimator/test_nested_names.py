"""A model with a weight whose name is another's suffix: trained, resumed, evaluated, converted."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.two_classes import FEATURES, LABELS, eval_input, train_input, weights

from csrun import nn
from csrun.cli import frame
from csrun.cli.csrun import csrun
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig, WarmStart

pytestmark = pytest.mark.usefixtures("own_folder")

NAMES = ("momentum/out", "att/out", "out")  # of layers: the first two end like the last


def model_fn(features, labels, mode, params):
    for name in NAMES[:-1]:
        features = nn.Dense(6, activation="tanh", name=name)(features)
    logits = nn.Dense(2, name=NAMES[-1])(features)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions={"logits": logits})
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=nn.Adam(params["rate"]).minimize(loss))


def estimator(folder, rate=0.02, **config):
    config = CSRunConfig(**{"save_checkpoints_steps": 3, "log_steps": 3, **config})
    return CerebrasEstimator(model_fn, folder, config, {"rate": rate})


def logits_of(state):
    features = FEATURES
    for name in NAMES:
        features = features @ state[f"{name}/kernel"] + state[f"{name}/bias"]
        features = features if name == NAMES[-1] else np.tanh(features)
    return features


def model_of(state):
    slots = ("gradient_sum/", "square_sum/")
    return {name: array for name, array in state.items() if not name.startswith(slots)}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_every_use_of_a_checkpoint_takes_all_weights(tmp_path):
    trained, converted = tmp_path / "trained", tmp_path / "converted"
    estimator(trained).train(train_input, max_steps=3)
    estimator(tmp_path / "whole").train(train_input, max_steps=6)
    estimator(trained).train(train_input, max_steps=6)
    resumed = weights(trained, 6)
    assert_same(resumed, weights(tmp_path / "whole", 6))
    state, expected = model_of(resumed), logits_of(resumed)

    loss = estimator(trained).evaluate(eval_input)["loss"]
    picked = expected[np.arange(len(LABELS)), LABELS]
    assert loss == pytest.approx(np.mean(np.log(np.exp(expected).sum(1)) - picked), rel=1e-4)
    found = [one["logits"] for one in estimator(trained).predict(eval_input)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    start = WarmStart(checkpoint_path=str(trained / "model-ckpt-6"), tensors=("^att/out/",))
    estimator(tmp_path / "warm", warm_start=start).train(train_input, max_steps=1)
    warm = weights(tmp_path / "warm", 0)
    np.testing.assert_array_equal(warm["att/out/kernel"], state["att/out/kernel"])

    save_file(state, tmp_path / "full.safetensors")
    words = ["checkpoint", "convert", str(tmp_path / "full.safetensors"), str(converted)]
    assert frame.run(csrun, [*words, "--from", "torch"]) == 0
    estimator(converted, rate=0.0).train(train_input, max_steps=1)
    assert_same(model_of(weights(converted, 1)), state)
