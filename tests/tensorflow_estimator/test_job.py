"""A TensorFlow estimator in a job: TensorFlow only in the chief, equal losses, resuming."""

import re

import pytest
from support.jobs import Sandbox
from support.tf_models import ignore_warnings

pytestmark = [ignore_warnings, pytest.mark.slow]

SCRIPT = """\
import sys
from pathlib import Path
import numpy as np
from cerebras.tf.cs_estimator import CerebrasEstimator
from cerebras.tf.cs_estimator_spec import CSEstimatorSpec
from cerebras.tf.run_config import CSRunConfig
from csrun.context import current
from csrun.data import Dataset

x = np.random.default_rng(1).standard_normal((64, 20)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)


def model_fn(features, labels, mode, params):
    import tensorflow as tf

    logits = tf.keras.layers.Dense(2)(tf.keras.layers.Dense(8, "relu")(features))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step())
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def input_fn(params):
    return Dataset.from_arrays(x, y).repeat().batch(16)


config = CSRunConfig(log_step_count_steps=2)
estimator = CerebrasEstimator(model_fn, sys.argv[1], config=config, params={})
estimator.train(input_fn, max_steps=int(sys.argv[2]))
estimator.evaluate(input_fn, steps=4)
context = current()
rank = context.rank if context else 0
Path(f"task_{rank}.txt").write_text(str("tensorflow" in sys.modules))
"""
JOB = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1")


def losses(text):
    return re.findall(r"global_step = (\d+), loss = ([\d.e-]+)", text)


def test_only_the_chief_imports_it_and_modes_and_resumed_runs_have_equal_losses(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    place = Sandbox(tmp_path)

    def run(*arguments):
        done = place.run(*JOB, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return losses(done.stdout)

    first = run("python-ws", "train.py", "streaming", "4")
    imported = [path.read_text() for path in sorted(tmp_path.glob("task_*.txt"))]
    assert imported.count("True") == 1, imported
    resumed = run("python-ws", "train.py", "streaming", "8")
    assert first + resumed == run("python", "train.py", "pipelined", "8")
