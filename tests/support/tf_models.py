"""TensorFlow 1 model functions, and what a Session computes for them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csrun.context import use_keras_2_for_tensorflow
from csrun.data import Dataset
from csrun.records import checkpoints
from csrun.tensorflow import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

use_keras_2_for_tensorflow()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("tf_keras", reason="tf-keras is not installed")

v1 = tf.compat.v1
BATCH, STEPS, FEATURES, CLASSES = 16, 20, 20, 10

ignore_warnings = pytest.mark.filterwarnings("ignore")
Batch = tuple[Any, Any]
ModelFunction = Callable[..., Any]


def batches(count: int = STEPS, seed: int = 0) -> list[Batch]:
    """Features and labels of a classification."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, BATCH, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, (count, BATCH)).astype(np.int32)
    return list(zip(x, y, strict=True))


def cross_entropy(logits: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def classifier(
    make_optimizer: Callable[[], Any],
    hidden: Callable[[Any], Any] = tf.nn.relu,
) -> ModelFunction:
    """A model_fn of two dense layers."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        layer = v1.layers.dense(features, 32, activation=hidden)
        logits = v1.layers.dense(layer, CLASSES)
        if mode == "infer":
            return CSEstimatorSpec(mode, predictions={"label": tf.argmax(logits, 1)})
        loss = cross_entropy(logits, labels)
        train_op = None
        if mode == "train":
            step = v1.train.get_or_create_global_step()
            train_op = make_optimizer().minimize(loss, global_step=step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def trained(
    model_fn: ModelFunction, folder: Path, data: list[Batch], **options: Any
) -> CerebrasEstimator:
    """Train by csrun on all batches, in float32 whatever policies a script has."""
    config = CSRunConfig(log_step_count_steps=1, precision="float32")
    estimator = CerebrasEstimator(model_fn, folder, config=config, **options)
    estimator.train(lambda: Dataset.from_batches(data), steps=len(data))
    return estimator


def weights(folder: Path, step: int) -> dict[str, np.ndarray]:
    """The weights of a checkpoint by name."""
    found = checkpoints.open_checkpoint(folder / checkpoints.name_of(step))
    named = {
        name: np.empty(spec.shape, spec.dtype) for name, spec in found.manifest.tensors.items()
    }
    found.take(named)
    return named


def in_session(
    model_fn: ModelFunction,
    first: dict[str, np.ndarray],
    data: list[Batch],
    params: Any = None,
    are_all: bool = False,
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and final weights of a Session's training from these weights.

    are_all: moving statistics are among them
    """
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = (tf.nest.map_structure(_placeholder, part) for part in data[0])
        spec = model_fn(x, y, "train", params)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        from csrun.tensorflow.graph_import import stored_name  # imports TensorFlow

        kept = v1.global_variables() if are_all else []
        kept = [v for v in kept if "moving_" in v.op.name]
        variables = {stored_name(v.op.name): v for v in [*v1.trainable_variables(), *kept]}
        for name, variable in variables.items():
            variable.load(first[name], session)
        losses = []
        for batch in data:
            given = tf.nest.flatten((x, y))
            feeds = dict(zip([t.ref() for t in given], tf.nest.flatten(batch), strict=True))
            loss, _ = session.run([spec.loss, spec.train_op], {t: feeds[t.ref()] for t in given})
            losses.append(float(loss))
        return losses, session.run(variables)


def evaluated(model_fn: ModelFunction, values: dict[str, np.ndarray], batch: Batch) -> float:
    """Loss of an evaluation in a Session with these weights."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = map(_placeholder, batch)
        spec = model_fn(x, y, "eval", None)
        for variable in v1.global_variables():
            variable.load(values[variable.op.name], session)
        return float(session.run(spec.loss, {x: batch[0], y: batch[1]}))


def _placeholder(array: np.ndarray) -> Any:
    return v1.placeholder(array.dtype, array.shape)


def assert_as_in_session(
    model_fn: ModelFunction,
    folder: Path,
    data: list[Batch],
    tolerance: float = 1e-6,
    params: Any = None,
) -> None:
    """Train by csrun and in a Session: equal weights, within the tolerance of their norm."""
    trained(model_fn, folder, data, params=params)
    first, last = weights(folder, 0), weights(folder, len(data))
    _, wanted = in_session(model_fn, first, data, params)
    assert wanted.keys() <= first.keys()
    moved = [np.linalg.norm(value - first[name]) for name, value in wanted.items()]
    assert min(moved) > 0
    assert (found := distance(last, wanted)) <= tolerance, found


def distance(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Distance of all weights, relative to their norm."""
    names = sorted(wanted)
    ours, theirs = (np.concatenate([each[n].ravel() for n in names]) for each in (found, wanted))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
