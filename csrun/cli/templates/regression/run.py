"""Fits a noisy sine of two inputs; --mode eval reports the mean squared error."""

import numpy as np

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CSEstimatorSpec
from csrun.params import main_for, run

NOISE = 0.1  # a perfect model's mean squared error is NOISE ** 2, 0.01


def make_data(samples, seed):
    random = np.random.default_rng(seed)
    points = random.uniform(-1, 1, (samples, 2)).astype(np.float32)  # [N, 2]
    values = np.sin(3 * points[:, 0]) + points[:, 1] + random.normal(0, NOISE, samples)
    return Dataset.from_arrays(points, values[:, None].astype(np.float32))


def model_fn(features, labels, mode, params):
    hidden = nn.Dense(32, activation="tanh", name="hidden")(features)  # [B, 32]
    values = nn.Dense(1, name="out")(hidden)  # [B, 1]
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode, predictions={"value": values})
    loss = nn.mean_squared_error(values, labels)
    train_op = nn.Adam(0.01).minimize(loss) if mode == nn.TRAIN else None
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def train_input_fn(params):
    return make_data(4096, seed=1).shuffle(seed=1).repeat().batch(64)


def eval_input_fn(params):
    return make_data(1024, seed=2).batch(64)


if __name__ == "__main__":
    main = main_for(model_fn, train_input_fn, eval_input_fn)
    run(main, default_params={"runconfig": {"max_steps": 1000, "log_steps": 100}})
