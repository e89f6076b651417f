"""A Keras model in a job, with a recorded update: modes, Keras in the chief alone, resuming."""

import re

import numpy as np
import pytest

pytest.importorskip("torch")
from support.jobs import Workplace
from support.keras_models import keras  # noqa: F401  skips where there is none

from csrun.records import checkpoints

SCRIPT = """\
import random
import sys
from pathlib import Path
import numpy as np
from csrun.context import current
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.params import RunConfig

x = np.random.default_rng(1).standard_normal((64, 20)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)


def build():
    import keras

    class Counter(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight((), "zeros", trainable=False, name="count")

        def call(self, x, training=None):
            if training:
                self.count.assign(self.count + 1)
            return x

    random.seed(1)  # of the weights; keras.utils.set_random_seed imports TensorFlow, too
    layers = [keras.Input((20,)), keras.layers.Dense(8, "relu"), Counter(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Lion(0.01), loss, metrics=["accuracy"])
    return model


def input_fn(params):
    return Dataset.from_arrays(x, y).repeat().batch(16)


more = {"num_csx": 2, "micro_batch_size": 4} if "--num_csx" in sys.argv else {}
config = RunConfig(log_steps=2, **more)
estimator = KerasModelToCerebrasEstimator(build, sys.argv[1], config)
estimator.train(input_fn, max_steps=int(sys.argv[2]))
results = estimator.evaluate(input_fn, steps=4)
context = current()
rank = context.rank if context else 0
Path(f"task_{rank}.txt").write_text(str("keras" in sys.modules))
"""
SITE = ("--site", "streaming-8")
JOB = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return Workplace(tmp_path)


def losses(text):
    """Steps, and their losses."""
    found = re.findall(r"global_step = (\d+), loss = ([\d.e-]+)", text)
    return [(int(step), float(loss)) for step, loss in found]


def test_only_the_chief_imports_keras_and_modes_and_resumed_runs_have_equal_losses(place):
    """The resumed run is on two systems, in micro-batches."""
    first = place.run(*JOB, "python-ws", "train.py", "streaming", "4")
    assert first.returncode == 0, first.stdout + first.stderr
    tasks = sorted(place.path.glob("task_*.txt"))
    imported = [path.read_text() for path in tasks]
    assert imported.count("True") == 1, imported
    parts = ("--num_csx", "2")
    resumed = place.run(*SITE, *JOB, "python-ws", "train.py", "streaming", "8", *parts)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    pipelined = place.run(*JOB, "python", "train.py", "pipelined", "8")
    assert pipelined.returncode == 0, pipelined.stdout + pipelined.stderr
    found, wanted = losses(first.stdout) + losses(resumed.stdout), losses(pipelined.stdout)
    assert [step for step, _ in found] == [step for step, _ in wanted]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in wanted], rel=1e-5)
    for name in ("streaming", "pipelined"):
        tensors = checkpoints.latest(place.path / name)
        (path,) = (each for each in tensors.manifest.tensors if each.endswith("/count"))
        counted = {path: np.zeros((), np.float32)}
        tensors.take(counted)
        assert counted[path] == 8, name
