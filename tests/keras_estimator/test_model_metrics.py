"""Metrics updated by a Keras model's own code, in a layer or a method of its class."""

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import BATCH, CLASSES, L, batches, compiled, keras, seed

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ops = keras.ops
X, Y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
WEIGHTS = np.linspace(0, 2, len(X), dtype=np.float32)
ODD = slice(0, 21)  # no whole batches
SETTINGS = {"batch_size": BATCH, "epochs": 2, "shuffle": False}


class Watched(L.Layer):
    """Layer that measures its features."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")
        self.forgotten = keras.metrics.Mean(name="forgotten")
        self.scaled = keras.metrics.Mean(name="scaled")

    def build(self, shape):
        self.scale = self.add_weight((), "ones", name="scale")

    def call(self, x):
        """Return scaled features, of which positive ones count twice."""
        copy = ops.add(x, 0.0)
        self.seen(copy, sample_weight=ops.where(x > 0, 2.0, 1.0))
        copy.mul_(100)  # after the call
        self.scaled.update_state(self.scale)
        return x * self.scale


class Measured(keras.Sequential):
    """Model whose call and loss update metrics."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.part = keras.metrics.Mean(name="part")
        self.correct = keras.metrics.SparseCategoricalAccuracy(name="correct")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the loss of compile(), or of features without labels, and a penalty."""
        penalty = ops.mean(ops.square(y_pred))
        self.part.update_state(penalty)
        if y is None:
            return penalty
        self.correct.update_state(y, y_pred, sample_weight=sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight) + 0.1 * penalty


class UsesResult(Measured):
    """Model whose loss contains the result of a metric."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss * self.correct.result()


def measured(kind=Measured, has_labels=True):
    seed(1)
    model = kind([keras.Input((20,)), L.Dense(8, "relu"), Watched(), L.Dense(CLASSES)])
    if has_labels:
        return compiled(model)
    model.compile("sgd")
    return model


@pytest.mark.parametrize(
    ("data", "given", "micro_batch"),
    [
        ((X, Y), {"sample_weight": WEIGHTS, "validation_data": (X[ODD], Y[ODD])}, "auto"),
        ((X, None), {}, "auto"),
        ((X, Y), {}, 8),
    ],
    ids=["weighted", "without labels", "micro-batches"],
)
def test_metrics_that_the_step_updates_are_those_of_keras(
    tmp_path, caplog, data, given, micro_batch
):
    sizes = {"validation_batch_size": 7} if given else {}

    def build():
        return measured(has_labels=data[1] is not None)

    history = build().fit(*data, **SETTINGS, **given, **sizes, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(
        build, tmp_path, CSRunConfig(micro_batch_size=micro_batch)
    )
    results = estimator.fit(*data, **SETTINGS, **given, **sizes).history
    assert {"seen", "scaled", "part"} < {*results}
    assert {*history} - {*results} >= {"forgotten"}
    assert "metric forgotten of layer measured/watched is not computed: update" in caplog.text
    for name, values in results.items():
        assert values == pytest.approx(history[name], rel=1e-5), name


def test_the_result_of_a_metric_is_refused_in_a_step(tmp_path):
    with pytest.raises(UsageError, match="computes with the result of a metric, which csrun"):
        KerasModelToCerebrasEstimator(measured(UsesResult), tmp_path).fit(X, Y, **SETTINGS)


class CustomMetrics(keras.Sequential):
    """Model with its own compute_metrics, which does not update one of its metrics."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.distance = keras.metrics.MeanSquaredError(name="distance")
        self.forgotten = keras.metrics.Mean(name="forgotten")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Return metrics of compile(), of features and predictions, and one of the last batch."""
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        self.distance.update_state(x[:, :CLASSES], y_pred, sample_weight)
        return {**found, "distance": self.distance.result(), "last": keras.ops.max(y_pred)}


class WithoutLabels(keras.Sequential):
    """Model of features only, which computes its own loss and metrics."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.size = keras.metrics.Mean(name="size")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.size.update_state(ops.abs(y_pred) if y is None else y)
        return self.get_metrics_result()


class ReadsWeights(keras.Sequential):
    """Model whose metrics depend on its weights."""

    def get_metrics_result(self):
        return {"norm": keras.ops.norm(self.layers[0].kernel)}


def test_metrics_of_the_models_own_class_without_labels_are_those_of_keras(tmp_path):
    def build():
        seed(1)
        model = WithoutLabels([keras.Input((20,)), L.Dense(CLASSES)])
        model.compile("sgd")
        return model

    model, estimator = build(), KerasModelToCerebrasEstimator(build, tmp_path)
    wanted = model.fit(X, **SETTINGS, verbose=0).history["size"]
    assert estimator.fit(X, **SETTINGS).history["size"] == pytest.approx(wanted, rel=1e-5)
    dataset = Dataset.from_arrays(X).batch(BATCH)
    found = estimator.evaluate(lambda params: dataset)["size"]
    assert found == pytest.approx(model.evaluate(X, verbose=0, return_dict=True)["size"], rel=1e-5)


def test_metrics_of_the_models_own_class_are_those_of_keras(tmp_path, caplog):
    def build(kind=CustomMetrics):
        seed(1)
        return compiled(kind([keras.Input((20,)), L.Dense(CLASSES)]))

    given = {**SETTINGS, "sample_weight": WEIGHTS, "validation_data": (X[ODD], Y[ODD])}
    model = build()
    history = model.fit(X, Y, **given, validation_batch_size=7, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(build(), tmp_path / "own")
    results = estimator.fit(X, Y, **given, validation_batch_size=7).history
    assert {*history} - {*results} == {"forgotten", "val_forgotten"}
    assert "metric forgotten is not computed: CustomMetrics.compute_metrics does not" in caplog.text
    for name, values in results.items():
        assert values == pytest.approx(history[name], rel=1e-5), name
    reads = "^ReadsWeights.compute_metrics reads the weight .*/kernel, which the chief does not"
    with pytest.raises(UsageError, match=reads):
        KerasModelToCerebrasEstimator(build(ReadsWeights), tmp_path / "reads").fit(X, Y, **SETTINGS)
