"""A Keras model in a job, with noise and a recorded update: modes, imports, resuming."""

import json
import re
from contextlib import chdir
from runpy import run_path

import numpy as np
import pytest

pytest.importorskip("torch")
from support.jobs import Sandbox
from support.keras_models import keras  # noqa: F401  skips where there is none

from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
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
    first = [keras.Input((20,)), keras.layers.GaussianNoise(0.5), keras.layers.Dense(8, "relu")]
    model = keras.Sequential([*first, Counter(), keras.layers.Dense(2)])
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
    return Sandbox(tmp_path)


def losses(text):
    """Losses by step."""
    found = re.findall(r"global_step = (\d+), loss = ([\d.e-]+)", text)
    return [(int(step), float(loss)) for step, loss in found]


def trained_here(place, caplog, monkeypatch):
    """Losses of the script in this process."""
    caplog.set_level("INFO", "csrun")
    monkeypatch.setattr("sys.argv", ["train.py", "here", "8"])
    with chdir(place.path):
        run_path("train.py", run_name="__main__")
    return losses(caplog.text)


def assert_equal(found, wanted):
    assert [step for step, _ in found] == [step for step, _ in wanted]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in wanted], rel=1e-5)


def counted(model_dir):
    """The layer's count in the newest checkpoint."""
    newest = checkpoints.latest(model_dir)
    (path,) = (each for each in newest.manifest.tensors if each.endswith("/count"))
    found = {path: np.zeros((), np.float32)}
    newest.take(found)
    return found[path]


FIT = """\
import json
import random
import sys
from pathlib import Path
import numpy as np
from csrun.context import current
from csrun.keras import KerasModelToCerebrasEstimator
import keras

x = np.random.default_rng(1).standard_normal((64, 20)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)
given = {"batch_size": 16, "epochs": 6, "shuffle": False, "validation_data": (x[:24] + 1, y[24:48])}


def build():
    random.seed(1)
    layers = [keras.Input((20,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


def callbacks():
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    ]


if __name__ == "__main__":
    estimator = KerasModelToCerebrasEstimator(build, "fitted")
    found = estimator.fit(x, y, **given, callbacks=callbacks())
    if (rank := current().rank) == 0:
        np.savez("weights.npz", *estimator.keras_model.get_weights())
    Path(f"task_{rank}.json").write_text(json.dumps(found.history))
"""


@pytest.mark.slow
def test_a_fit_in_a_job_is_that_of_keras_in_all_tasks(place):
    (place.path / "train.py").write_text(FIT)
    done = place.run(*JOB, "python-ws", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    own = run_path(str(place.path / "train.py"))
    model = own["build"]()
    wanted = model.fit(own["x"], own["y"], **own["given"], callbacks=own["callbacks"](), verbose=0)
    assert len(wanted.epoch) < 6
    found = [json.loads(path.read_text()) for path in sorted(place.path.glob("task_*.json"))]
    assert len(found) == 4
    for history in found:
        assert history == found[0]
    assert found[0].keys() == wanted.history.keys()
    for name, values in wanted.history.items():
        assert found[0][name] == pytest.approx(values, rel=1e-5), name
    weights = np.load(place.path / "weights.npz").values()
    for ours, theirs in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


IN_PARTS = ("--num_csx", "2")


def test_only_the_chief_imports_keras_and_a_job_has_the_losses_of_one_process(
    place, caplog, monkeypatch
):
    """On two systems, in micro-batches."""
    done = place.run(*SITE, *JOB, "python-ws", "train.py", "streaming", "8", *IN_PARTS)
    assert done.returncode == 0, done.stdout + done.stderr
    imported = [path.read_text() for path in sorted(place.path.glob("task_*.txt"))]
    assert imported.count("True") == 1, imported
    assert_equal(losses(done.stdout), trained_here(place, caplog, monkeypatch))
    assert counted(place.path / "streaming") == counted(place.path / "here") == 8


@pytest.mark.slow
def test_a_resumed_job_has_the_losses_of_one_process(place, caplog, monkeypatch):
    """The resumed run is on two systems, in micro-batches."""
    first = place.run(*JOB, "python-ws", "train.py", "streaming", "4")
    assert first.returncode == 0, first.stdout + first.stderr
    resumed = place.run(*SITE, *JOB, "python-ws", "train.py", "streaming", "8", *IN_PARTS)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    found = losses(first.stdout) + losses(resumed.stdout)
    assert_equal(found, trained_here(place, caplog, monkeypatch))
    assert counted(place.path / "streaming") == counted(place.path / "here") == 8


@pytest.mark.slow
def test_a_pipelined_job_has_the_losses_of_one_process(place, caplog, monkeypatch):
    done = place.run(*JOB, "python", "train.py", "pipelined", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equal(losses(done.stdout), trained_here(place, caplog, monkeypatch))
    assert counted(place.path / "pipelined") == 8
