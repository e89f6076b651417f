"""A small model of two classes, its data, its estimator, and what it leaves."""

import logging
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from support.event_files import events

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

random = np.random.default_rng(4)
FEATURES = random.standard_normal((40, 6)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int32)


def train_input(params):
    return Dataset.from_arrays(FEATURES, LABELS).repeat().batch(8, drop_remainder=True)


def eval_input(params):
    """Forty samples in batches of 16: the last has 8."""
    return Dataset.from_arrays(FEATURES, LABELS).batch(16)


def model_fn(features, labels, mode, params):
    hidden = nn.Dense(params["units"], activation="tanh", name="hidden")(features)
    logits = nn.Dense(2, name="out")(hidden)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(
            mode=mode, predictions={"class": nn.argmax(logits), "logits": logits}
        )
    nn.summary.scalar("logits_mean", logits)
    nn.summary.histogram("hidden_values", hidden)
    loss = nn.softmax_cross_entropy(logits, labels)
    train_op = nn.Adam(0.02).minimize(loss)
    host_call = (shares, [nn.argmax(logits)]) if mode == nn.EVAL else None
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op, host_call=host_call)


def shares(classes):
    return {"positive": float(np.mean(classes))}


def estimator(model_dir, units=5, **config):
    config = {"save_checkpoints_steps": 10, "log_steps": 5, **config}
    return CerebrasEstimator(model_fn, model_dir, CSRunConfig(**config), {"units": units})


def weights(model_dir, step):
    return load_file(Path(model_dir) / f"model-ckpt-{step}.safetensors")


def logits_of(state):
    hidden = np.tanh(FEATURES @ state["hidden/kernel"] + state["hidden/bias"])
    return hidden @ state["out/kernel"] + state["out/bias"]


def mean_loss(state):
    logits = logits_of(state).astype(np.float64)
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(LABELS)), LABELS]))


def warnings(caplog):
    """What was warned of besides the input function."""
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [text for text in found if not text.startswith("Suggestions to improve input_fn")]


def summaries(model_dir):
    """(step, tag) to value of all events."""
    return {
        (event.step, value.tag): value
        for path in model_dir.glob("events.out.tfevents.*")
        for event in events(path)
        for value in event.summary.value
    }
