"""Keras optimizers as csrun's algorithms, beside Keras's own steps; what is refused by name."""

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import STEPS, batches, keras, mlp

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OPTIMIZERS, SCHEDULES = keras.optimizers, keras.optimizers.schedules
MADE = {
    "sgd": lambda: OPTIMIZERS.SGD(0.1),
    "sgd nesterov": lambda: OPTIMIZERS.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: OPTIMIZERS.Adam(0.01, epsilon=1e-3),
    "adam decayed": lambda: OPTIMIZERS.Adam(0.01, weight_decay=0.1),
    "adamw": lambda: OPTIMIZERS.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: OPTIMIZERS.RMSprop(0.01, epsilon=1e-2),
    "rmsprop centered": lambda: OPTIMIZERS.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: OPTIMIZERS.Adagrad(0.05, epsilon=1e-2),
    "adadelta": lambda: OPTIMIZERS.Adadelta(1.0),
    "amsgrad": lambda: OPTIMIZERS.Adam(0.01, amsgrad=True),
    "nadam": lambda: OPTIMIZERS.Nadam(0.01, weight_decay=0.1),
    "clipped": lambda: OPTIMIZERS.SGD(0.1, global_clipnorm=0.1),
    "each clipped": lambda: OPTIMIZERS.Adam(0.01, epsilon=1e-3, clipnorm=0.03),
    "clipped by value": lambda: OPTIMIZERS.SGD(0.1, momentum=0.9, clipvalue=0.002),
    "piecewise": lambda: OPTIMIZERS.SGD(SCHEDULES.PiecewiseConstantDecay([1, 3], [0.1, 0.05, 0.2])),
    "polynomial": lambda: OPTIMIZERS.SGD(SCHEDULES.PolynomialDecay(0.1, 4, 0.01, power=2.0)),
    "exponential": lambda: OPTIMIZERS.SGD(SCHEDULES.ExponentialDecay(0.1, 2, 0.5)),
    "cosine": lambda: OPTIMIZERS.SGD(SCHEDULES.CosineDecay(0.1, 4, alpha=0.1)),
    "velocity of rates": lambda: OPTIMIZERS.SGD(
        SCHEDULES.ExponentialDecay(0.1, 2, 0.5), momentum=0.9, nesterov=True
    ),
    "rmsprop of rates": lambda: OPTIMIZERS.RMSprop(
        SCHEDULES.ExponentialDecay(0.01, 2, 0.5), momentum=0.9
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_weights_are_those_of_keras(tmp_path, name):
    sample = batches("mlp")
    estimator = KerasModelToCerebrasEstimator(
        lambda: mlp(MADE[name]()), tmp_path, CSRunConfig(log_steps=STEPS)
    )
    estimator.train(lambda params: Dataset.from_batches(sample))
    model = mlp(MADE[name]())
    for x, y in sample:
        model.train_on_batch(x, y)
    for ours, own in zip(estimator.keras_model.variables, model.variables, strict=True):
        ours, own = (v.value.detach().cpu().numpy() for v in (ours, own))
        np.testing.assert_allclose(ours, own, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_variable_that_keras_does_not_decay_is_not_decayed(tmp_path):
    def build():
        optimizer = OPTIMIZERS.AdamW(0.01, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return mlp(optimizer)

    sample = batches("mlp", 2)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    estimator.train(lambda params: Dataset.from_batches(sample))
    model = build()
    for x, y in sample:
        model.train_on_batch(x, y)
    for ours, own in zip(estimator.keras_model.variables, model.variables, strict=True):
        ours, own = (v.value.detach().cpu().numpy() for v in (ours, own))
        np.testing.assert_allclose(ours, own, rtol=2e-5, atol=2e-6)


class OwnSgd(OPTIMIZERS.SGD):
    """An optimizer of the user's, whose step csrun does not know."""

    def update_step(self, gradient, variable, learning_rate):
        """Half of the step."""
        super().update_step(gradient, variable, learning_rate / 2)


REFUSED = {
    "optimizer Ftrl is not supported: use one of Adadelta, Adagrad": lambda: OPTIMIZERS.Ftrl(),
    "optimizer OwnSgd is not supported": lambda: OwnSgd(0.1),
    "Adam: use_ema is not supported": lambda: OPTIMIZERS.Adam(0.1, use_ema=True),
    "Adam: gradient_accumulation_steps is not supported": lambda: OPTIMIZERS.Adam(
        gradient_accumulation_steps=2
    ),
    "SGD: weight_decay is not supported": lambda: OPTIMIZERS.SGD(0.1, weight_decay=0.1),
    "SGD: the schedule ExponentialDecay is not supported: use": lambda: OPTIMIZERS.SGD(
        SCHEDULES.ExponentialDecay(0.1, 4, 0.5, staircase=True)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path, message):
    estimator = KerasModelToCerebrasEstimator(lambda: mlp(REFUSED[message]()), tmp_path)
    sample = batches("mlp", 1)
    with pytest.raises(UsageError, match="^" + message):
        estimator.train(lambda params: Dataset.from_batches(sample))
    assert not list(tmp_path.glob("model-ckpt*"))
