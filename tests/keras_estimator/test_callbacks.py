"""Callbacks of a fit against Keras: values of epochs, learning rates and weights."""

import csv

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_callbacks import Seen, SeenBatches, halved
from support.keras_models import BATCH, batches, keras, mlp

from csrun.base.errors import CsrunError, UsageError
from csrun.base.run_config import CSRunConfig
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
X, Y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
VALID = X[:24] + 0.5, Y[:24][::-1].copy()
C, OPTIMIZERS = keras.callbacks, keras.optimizers


def adam():
    return mlp(OPTIMIZERS.Adam(0.05))


def adamax():
    return mlp(OPTIMIZERS.Adamax(0.05))


def averaged():
    return mlp(OPTIMIZERS.Adam(0.05, use_ema=True, ema_momentum=0.5))


def noting():
    return C.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(epoch=epoch))


def stopping(**options):
    return C.EarlyStopping(patience=1, restore_best_weights=True, **options)


CASES = {
    "early stopping": (adam, lambda: stopping(monitor="val_accuracy"), {}),
    "scheduler": (mlp, lambda: [C.LearningRateScheduler(halved)], {}),
    "averages": (averaged, lambda: [stopping(monitor="val_accuracy"), Seen()], {}),
    "recorded": (adamax, lambda: [C.LearningRateScheduler(halved), stopping()], {}),
    "in parts": (adamax, lambda: [C.LearningRateScheduler(halved)], {"micro_batch_size": 4}),
    "plateau": (adam, lambda: [C.ReduceLROnPlateau(patience=1, cooldown=1), Seen(), noting()], {}),
    "batches": (mlp, lambda: [SeenBatches()], {}),
    "none": (mlp, lambda: None, {"save_checkpoints_steps": 3}),
}


def assert_same_calls(ours, wanted):
    assert [call[0] for call in ours.calls] == [call[0] for call in wanted.calls]
    for (name, found, bias), (_, own, own_bias) in zip(ours.calls, wanted.calls, strict=True):
        assert found == pytest.approx(own, rel=1e-5, abs=1e-6), name
        assert bias == pytest.approx(own_bias, rel=1e-4, abs=1e-4), name


@pytest.mark.parametrize("name", CASES)
def test_a_fit_is_that_of_keras(tmp_path, name):
    build, make, config = CASES[name]
    given = {"batch_size": BATCH, "epochs": 5, "shuffle": False, "validation_data": VALID}
    model, callbacks = build(), make()
    wanted = model.fit(X, Y, **given, callbacks=callbacks, verbose=0)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, CSRunConfig(**config))
    own = make()
    found = estimator.fit(X, Y, **given, callbacks=own)
    assert found.epoch == wanted.epoch
    assert found.history.keys() == wanted.history.keys()
    for key, values in wanted.history.items():
        assert found.history[key] == pytest.approx(values, rel=1e-5), key
    ours = estimator.keras_model
    assert ours.history.history.keys() == wanted.history.keys()
    for each, theirs in zip(ours.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(each, theirs, rtol=1e-4, atol=1e-5)
    assert float(ours.optimizer.learning_rate) == float(model.optimizer.learning_rate)
    pairs = zip(own or (), callbacks or (), strict=True) if isinstance(own, list) else ()
    for each, theirs in pairs:
        if isinstance(each, Seen):
            assert_same_calls(each, theirs)
    evaluated = estimator.evaluate(lambda params: _dataset(*VALID))
    own_loss = model.evaluate(*VALID, batch_size=8, verbose=0)[0]
    assert evaluated["loss"] == pytest.approx(own_loss, rel=1e-5)


def test_the_log_has_the_values_of_each_epoch(tmp_path, caplog):
    given = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "validation_data": VALID}
    wanted = mlp().fit(X, Y, **given, verbose=0).history
    with caplog.at_level("INFO", "csrun"):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(X, Y, **given)
    for epoch in range(2):
        (line,) = (each for each in caplog.messages if each.startswith(f"Epoch {epoch + 1}/2: "))
        found = dict(each.split(" = ") for each in line.partition(": ")[2].split(", "))
        values = {name: wanted[name][epoch] for name in wanted}
        assert {name: float(text) for name, text in found.items()} == pytest.approx(values, 1e-4)


def _dataset(x, y):
    from csrun.data import Dataset

    return Dataset.from_arrays(x, y).batch(8)


def test_files_of_callbacks_are_those_of_keras(tmp_path, caplog):
    def callbacks(folder):
        name = str(folder / "epoch{epoch}.weights.h5")
        return [
            C.CSVLogger(str(folder / "log.csv")),
            C.ModelCheckpoint(name, save_weights_only=True, save_best_only=True),
            C.TensorBoard(str(folder / "events")),
        ]

    given = {"batch_size": BATCH, "epochs": 4, "shuffle": False, "validation_data": VALID}
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    adam().fit(X, Y, **given, callbacks=callbacks(theirs)[:2], verbose=0)
    with caplog.at_level("INFO"):
        KerasModelToCerebrasEstimator(adam, tmp_path / "run").fit(
            X, Y, **given, callbacks=callbacks(ours)
        )
    assert "fit: callback TensorBoard is not called: losses, metrics and" in caplog.text
    assert sorted(p.name for p in ours.iterdir()) == sorted(p.name for p in theirs.iterdir())
    texts = [(folder / "log.csv").read_text().splitlines() for folder in (ours, theirs)]
    rows = [list(csv.reader(text)) for text in texts]
    assert rows[0][0] == rows[1][0]
    found, wanted = (np.array(each[1:], float) for each in rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for path in theirs.glob("*.h5"):
        pair = adam(), adam()
        for model, folder in zip(pair, (ours, theirs), strict=True):
            model.optimizer.build(model.trainable_variables)
            model.load_weights(folder / path.name)
        for each, own in zip(*(model.get_weights() for model in pair), strict=True):
            np.testing.assert_allclose(each, own, rtol=1e-4, atol=1e-5)


def test_a_resumed_fit_goes_on_with_its_epoch_and_learning_rate(tmp_path, caplog):
    given = {"batch_size": BATCH, "shuffle": False}
    callbacks = lambda: [C.LearningRateScheduler(halved)]  # noqa: E731
    for epochs in (2, 4):
        estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
        found = estimator.fit(X, Y, **given, epochs=epochs, callbacks=callbacks())
    model = mlp()
    wanted = model.fit(X, Y, **given, epochs=4, callbacks=callbacks(), verbose=0)
    assert found.epoch == [2, 3]
    for key, values in wanted.history.items():
        assert found.history[key] == pytest.approx(values[2:], rel=1e-5), key
    with caplog.at_level("INFO", "csrun"):
        again = estimator.fit(X, Y, **given, epochs=4, callbacks=callbacks())
    assert again.epoch == []
    assert "nothing to train; raise epochs or" in caplog.messages[-1]
    with pytest.raises(UsageError, match="its momentum is of a training with callbacks that may"):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(X, Y, **given, epochs=5)


def test_a_loss_that_is_not_finite_ends_a_fit_as_its_callback_does(tmp_path):
    x = X.copy()
    x[2 * BATCH] = np.nan
    given = {"batch_size": BATCH, "epochs": 2, "shuffle": False}
    wanted = mlp().fit(x, Y, **given, callbacks=[C.TerminateOnNaN()], verbose=0)
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path / "ended")
    found = estimator.fit(x, Y, **given, callbacks=[C.TerminateOnNaN()])
    assert found.epoch == wanted.epoch == [0]
    assert np.isnan(found.history["loss"]).all()
    assert checkpoints.latest(tmp_path / "ended").step == 2  # the last step with an update
    with pytest.raises(CsrunError, match=r"^loss is nan at step 3: training stopped"):
        KerasModelToCerebrasEstimator(mlp, tmp_path / "failed").fit(x, Y, **given)


def test_a_validation_loss_that_is_not_finite_is_reported_and_the_fit_goes_on(tmp_path, caplog):
    x = VALID[0].copy()
    x[BATCH] = np.inf
    given = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "validation_data": (x, VALID[1])}
    model = mlp()
    wanted = model.fit(X, Y, **given, verbose=0)
    ours = mlp()
    found = KerasModelToCerebrasEstimator(ours, tmp_path).fit(X, Y, **given)
    assert found.epoch == [0, 1]
    assert np.isnan([wanted.history["val_loss"], found.history["val_loss"]]).all()
    assert found.history["loss"] == pytest.approx(wanted.history["loss"], rel=1e-5)
    assert "fit: validation after step 4: loss is nan" in caplog.text
    for each, own in zip(ours.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(each, own, rtol=1e-4, atol=1e-5)


def test_a_metric_of_several_numbers_is_in_the_logs_of_callbacks(tmp_path):
    labels = [np.eye(2, dtype=np.float32)[each % 2] for each in (Y, VALID[1])]

    def model():
        layers = [keras.Input(X.shape[1:]), keras.layers.Dense(2, kernel_initializer="ones")]
        found = keras.Sequential(layers)
        found.compile("sgd", keras.losses.MeanSquaredError(), metrics=[keras.metrics.F1Score()])
        return found

    given = {"batch_size": BATCH, "validation_data": (VALID[0], labels[1]), "shuffle": False}
    seen = []
    given["callbacks"] = C.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append({**logs}))
    model().fit(X, labels[0], **given, verbose=0)
    KerasModelToCerebrasEstimator(model, tmp_path).fit(X, labels[0], **given)
    wanted, found = seen
    for name in ("f1_score", "val_f1_score"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


def test_averages_are_the_models_weights_at_the_end_of_a_fit_but_not_a_checkpoints(tmp_path):
    given = {"batch_size": BATCH, "epochs": 2, "shuffle": False}
    model, callbacks, own = averaged(), [Seen()], [Seen()]
    model.fit(X, Y, **given, callbacks=callbacks, verbose=0)
    estimator = KerasModelToCerebrasEstimator(averaged, tmp_path)
    estimator.fit(X, Y, **given, callbacks=own)
    assert_same_calls(own[0], callbacks[0])
    for each, theirs in zip(estimator.keras_model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(each, theirs, rtol=1e-4, atol=1e-5)
    stored = checkpoints.latest(tmp_path).tensor("sequential/dense/kernel")
    assert np.abs(stored - model.get_weights()[0]).max() > 1e-3


def test_a_rerun_has_the_weights_that_callbacks_set_at_the_end(tmp_path):
    """A rerun has nothing left to train, and must not set the averages instead."""
    given = {"batch_size": BATCH, "epochs": 3, "shuffle": False, "validation_data": VALID}
    model = averaged()
    model.fit(X, Y, **given, callbacks=[stopping(monitor="val_accuracy")], verbose=0)
    for _ in range(2):
        estimator = KerasModelToCerebrasEstimator(averaged, tmp_path)
        found = estimator.fit(X, Y, **given, callbacks=[stopping(monitor="val_accuracy")])
        weights = estimator.keras_model.get_weights()
        for each, theirs in zip(weights, model.get_weights(), strict=True):
            np.testing.assert_allclose(each, theirs, rtol=1e-4, atol=1e-5)
    assert found.epoch == []


@pytest.mark.parametrize("build", [adam, adamax], ids=["by a rule", "recorded"])
def test_a_learning_rate_that_the_user_sets_between_two_fits_counts(tmp_path, build):
    given = {"batch_size": BATCH, "shuffle": False, "callbacks": [noting()]}
    model, ours = build(), build()
    estimator = KerasModelToCerebrasEstimator(ours, tmp_path)
    for epochs, rate in ((1, 0.05), (2, 0.01)):
        model.optimizer.learning_rate = ours.optimizer.learning_rate = rate
        wanted = model.fit(X, Y, **given, initial_epoch=epochs - 1, epochs=epochs, verbose=0)
        found = estimator.fit(X, Y, **given, epochs=epochs)
        assert found.history["loss"] == pytest.approx(wanted.history["loss"], rel=1e-5)


@pytest.mark.parametrize("build", [adam, adamax], ids=["by a rule", "recorded"])
def test_a_learning_rate_set_by_a_callback_is_kept_in_other_processes(tmp_path, build):
    """The first two fits share a process and model; its current rate must not count as set anew."""
    given = {"batch_size": BATCH, "shuffle": False}
    make = lambda: [C.LearningRateScheduler(halved)]  # noqa: E731
    first = KerasModelToCerebrasEstimator(build, tmp_path)
    for epochs, estimator in ((1, first), (2, first), (3, None)):
        estimator = estimator or KerasModelToCerebrasEstimator(build, tmp_path)
        found = estimator.fit(X, Y, **given, epochs=epochs, callbacks=make())
    model = build()
    wanted = model.fit(X, Y, **given, epochs=3, callbacks=make(), verbose=0)
    assert found.history["learning_rate"] == pytest.approx(wanted.history["learning_rate"][2:])
    assert found.history["loss"] == pytest.approx(wanted.history["loss"][2:], rel=1e-5)


def test_a_callback_that_is_not_called_does_not_change_the_checkpoint(tmp_path):
    """Momentum in a training with callbacks is stored in another form."""
    given = {"batch_size": BATCH, "shuffle": False}
    for epochs, callbacks in ((1, [C.TensorBoard(tmp_path / "logs")]), (2, None)):
        estimator = KerasModelToCerebrasEstimator(mlp, tmp_path / "run")
        found = estimator.fit(X, Y, **given, epochs=epochs, callbacks=callbacks)
    assert found.epoch == [1]


def test_validation_batches_can_be_divided_as_those_of_the_training(tmp_path):
    config = CSRunConfig(micro_batch_size=5)
    estimator = KerasModelToCerebrasEstimator(adam, tmp_path, config)
    with pytest.raises(UsageError, match="use a multiple of 5 samples"):
        estimator.fit(X, Y, BATCH, validation_data=VALID)


class OfTests(C.Callback):
    """User-defined callback with a method for batches of evaluations."""

    def on_test_batch_end(self, batch, logs=None):
        """Never called."""


class Scheduling(C.Callback):
    """Callback that replaces the learning rate by a schedule."""

    def on_epoch_end(self, epoch, logs=None):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        self.model.optimizer.learning_rate = schedule


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (OfTests(), r"^fit: OfTests.on_test_batch_end is not called: .* use on_test_end"),
        (C.SwapEMAWeights(), "^fit: callback SwapEMAWeights is not supported: leave it out"),
        (Scheduling(), "^fit: a callback has set optimizer.learning_rate to a schedule: give"),
    ],
)
def test_what_a_callback_cannot_do_is_refused_by_name(tmp_path, callback, message):
    with pytest.raises(UsageError, match=message):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(
            X, Y, batch_size=BATCH, epochs=2, callbacks=[callback]
        )
