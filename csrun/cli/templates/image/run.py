"""Tells images of squares from images of crosses; --mode eval reports the accuracy."""

import numpy as np

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CSEstimatorSpec
from csrun.params import main_for, run

SIDE, SHAPE = 16, 7  # pixels of an image and of the shape in it


def make_data(samples, seed):
    """Noisy images, float32 [N, 1, SIDE, SIDE], and their classes: 0 square, 1 cross."""
    random = np.random.default_rng(seed)
    square, cross = np.zeros((2, SHAPE, SHAPE))
    square[[0, -1]] = square[:, [0, -1]] = 1
    cross[SHAPE // 2] = cross[:, SHAPE // 2] = 1
    images = random.normal(0, 0.3, (samples, 1, SIDE, SIDE))
    classes = random.integers(0, 2, samples)
    for image, kind in zip(images, classes, strict=True):
        top, left = random.integers(0, SIDE - SHAPE + 1, 2)
        image[0, top : top + SHAPE, left : left + SHAPE] += (square, cross)[kind]
    return Dataset.from_arrays(images.astype(np.float32), classes.astype(np.int32))


def model_fn(features, labels, mode, params):
    x = nn.Conv2D(8, 3, padding="same", activation="relu", name="conv_1")(features)
    x = nn.MaxPool(2)(x)  # [B, 8, 8, 8]
    x = nn.Conv2D(16, 3, padding="same", activation="relu", name="conv_2")(x)
    x = nn.MaxPool(2)(x)  # [B, 16, 4, 4]
    logits = nn.Dense(2, name="out")(nn.flatten(x))
    classes = nn.argmax(logits)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode, predictions={"class": classes})
    loss = nn.softmax_cross_entropy(logits, labels)
    if mode == nn.EVAL:
        return CSEstimatorSpec(mode, loss=loss, host_call=(metrics, [labels, classes]))
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.Adam(0.003).minimize(loss))


def metrics(labels, classes):
    return {"accuracy": nn.metrics.accuracy(labels, classes)}


def train_input_fn(params):
    return make_data(2048, seed=1).shuffle(seed=1).repeat().batch(32)


def eval_input_fn(params):
    return make_data(512, seed=2).batch(32)


if __name__ == "__main__":
    main = main_for(model_fn, train_input_fn, eval_input_fn)
    run(main, default_params={"runconfig": {"max_steps": 300, "log_steps": 50}})
