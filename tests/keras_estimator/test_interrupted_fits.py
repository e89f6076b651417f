"""Fits ended by a signal, and resumed: values, callbacks and metrics against Keras."""

import os
import signal

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_callbacks import Seen, SeenBatches, halved
from support.keras_models import BATCH, CLASSES, batches, compiled, keras, mlp

from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
X, Y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
VALID = X[:24] + 0.5, Y[:24][::-1].copy()
C = keras.callbacks


class Interrupting(C.Callback):
    """Signal sent while a batch is computed."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)


class StepValues(keras.Sequential):
    """Model whose train_step returns a value of the batch."""

    def train_step(self, data):
        return {**super().train_step(data), "last": keras.ops.max(data[0])}


class ComputedValues(keras.Sequential):
    """Model whose metrics include a value of the batch."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**found, "last": keras.ops.max(x)}


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (2, keras.Sequential),
        (4, keras.Sequential),
        (8, keras.Sequential),
        (4, StepValues),
        (4, ComputedValues),
    ],
    ids=["within", "end of an epoch", "end of all", "values of a step", "computed values"],
)
def test_a_fit_ended_by_a_signal_ends_its_epoch_when_resumed(tmp_path, batch, kind):
    """Values are over all batches, and a callback's learning rate is changed once."""
    given = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "validation_data": VALID}
    given["validation_batch_size"] = 8

    def build():
        return compiled(kind(mlp().layers))

    make = lambda: [C.LearningRateScheduler(halved), Seen()]  # noqa: E731
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X, Y, **given, callbacks=[*make(), Interrupting(batch)])
    assert checkpoints.latest(tmp_path).step == batch
    resumed, own = KerasModelToCerebrasEstimator(build, tmp_path), make()
    found = resumed.fit(X, Y, **given, callbacks=own)
    model, callbacks = build(), make()
    wanted = model.fit(X, Y, **given, callbacks=callbacks, verbose=0)
    assert found.epoch == list(range((batch - 1) // 4, 2))
    for key, values in wanted.history.items():
        assert found.history[key] == pytest.approx(values[-len(found.epoch) :], rel=1e-5), key
    for each, theirs in zip(resumed.keras_model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(each, theirs, rtol=1e-4, atol=1e-5)
    (begin, *calls), wanted_calls = own[1].calls, callbacks[1].calls
    assert begin[0] == wanted_calls[0][0]
    assert [call[0] for call in calls] == [call[0] for call in wanted_calls[-len(calls) :]]
    assert resumed.fit(X, Y, **given, callbacks=make()).epoch == []


def test_a_signal_is_handled_after_on_train_batch_end(tmp_path):
    """The callback runs once, and the checkpoint has the weights that it sets."""
    given = {"batch_size": BATCH, "epochs": 1, "shuffle": False}
    first, last = SeenBatches(), SeenBatches()
    with pytest.raises(KeyboardInterrupt):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(
            X, Y, **given, callbacks=[first, Interrupting(3)]
        )
    resumed = KerasModelToCerebrasEstimator(mlp, tmp_path)
    resumed.fit(X, Y, **given, callbacks=[last])
    model, seen = mlp(), SeenBatches()
    model.fit(X, Y, **given, callbacks=[seen], verbose=0)
    ends = [[call[0] for call in each.calls if call[0][0] == "batch end"] for each in (first, last)]
    assert [*ends[0], *ends[1]] == [call[0] for call in seen.calls if call[0][0] == "batch end"]
    assert len(ends[0]) == 3
    for each, theirs in zip(resumed.keras_model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(each, theirs, rtol=1e-4, atol=1e-5)


def test_a_resumed_epoch_begins_other_metrics_anew(tmp_path):
    given = {"batch_size": BATCH, "epochs": 1, "shuffle": False}

    def build(metric):
        model = mlp()
        model.compile("sgd", model.loss, metrics=[metric])
        return model

    estimator = KerasModelToCerebrasEstimator(lambda: build("accuracy"), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X, Y, **given, callbacks=[Interrupting(3)])
    all_classes = keras.metrics.SparseTopKCategoricalAccuracy(k=CLASSES, name="all")
    resumed = KerasModelToCerebrasEstimator(lambda: build(all_classes), tmp_path)
    assert resumed.fit(X, Y, **given, callbacks=[Seen()]).history["all"] == [1.0]
