"""--multireplica for a model that cannot have replicas: a warning, and a training without them."""

import json
import logging

import pytest
from support.two_classes import train_input

from csrun import nn
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

pytestmark = pytest.mark.usefixtures("own_folder")


def model_fn(features, labels, mode, params):
    hidden = nn.BatchNorm(name="norm")(nn.Dense(params["units"])(features))
    loss = nn.softmax_cross_entropy(nn.Dense(2)(hidden), labels)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=nn.SGD(0.1).minimize(loss))


def test_a_model_that_mixes_samples_trains_without_replicas(tmp_path, caplog):
    config = CSRunConfig(multireplica=True, save_checkpoints_steps=10)
    with caplog.at_level(logging.INFO, "csrun"):
        CerebrasEstimator(model_fn, tmp_path, config, {"units": 4}).train(train_input, max_steps=2)
    (warning,) = [message for message in caplog.messages if "ultireplica" in message]
    assert warning.startswith(
        "Multireplica not allowed for current model. Disabling multireplica: layer norm: "
    )
    assert warning.endswith(" mixes the samples of a batch")
    (path,) = tmp_path.glob("tfcs_*/plan.json")
    assert json.loads(path.read_text())["replicas"] == 1
