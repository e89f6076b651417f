"""`fit` on arrays: sample weights, validation data and refused arguments, against Keras."""

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import BATCH, CLASSES, STEPS, L, batches, compiled, keras, mlp, seed

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
X, Y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
WEIGHTS = np.linspace(0, 2, len(X), dtype=np.float32)
ODD = slice(0, 21)  # no whole batches
SETTINGS = {"batch_size": BATCH, "epochs": 2, "shuffle": False}


def assert_equal_weights(ours, wanted):
    for found, own in zip(ours.variables, wanted.variables, strict=True):
        found, own = (v.value.detach().cpu().numpy() for v in (found, own))
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"sample_weight": WEIGHTS},
        {"class_weight": {0: 3.0, 1: 0.5, 2: 0.0}},
        {"validation_data": (X[ODD], Y[ODD])},
        {"validation_data": (X[ODD], Y[ODD], WEIGHTS[ODD]), "validation_batch_size": 7},
        {"validation_split": 0.25, "sample_weight": WEIGHTS},
    ],
    ids=["sample_weight", "class_weight", "validation", "weighted validation", "split"],
)
def test_fit_takes_the_arguments_of_keras(tmp_path, given):
    model = mlp()
    history = model.fit(X, Y, **SETTINGS, **given, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
    results = estimator.fit(X, Y, **SETTINGS, **given, verbose=2)
    assert_equal_weights(estimator.keras_model, model)
    assert results.history.keys() == history.keys()
    for name, values in history.items():
        assert results.history[name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"validation_split": 1.0}, "^fit: validation_split=1.0 of .* leaves none"),
        ({"steps_per_epoch": 2}, "^fit: steps_per_epoch is not supported for arrays, whose"),
        ({"y": None, "sample_weight": WEIGHTS}, "^fit: weights need labels: give y"),
        ({"y": None, "validation_split": 0.5}, "^fit: validation_split needs labels: give y"),
        (
            {"x": range, "sample_weight": WEIGHTS},
            "^fit: y is supported for arrays only: put labels",
        ),
        ({"x": iter([]), "y": None}, r"^fit: the number of batches of a list_iterator is not kno"),
        ({"batch_size": 65}, "^fit: batch_size 65 exceeds the 64 samples: lower it"),
        ({"class_weight": {}, "sample_weight": WEIGHTS}, "^fit: give one of sample_weight and"),
        ({"class_weight": {}, "y": (Y, Y)}, "^fit: class_weight needs one array of labels"),
        ({"class_weight": {}, "y": X[:, :, None]}, "^fit: class_weight needs labels of shape"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
def test_fit_refuses_an_argument_by_name(tmp_path, given, message):
    arguments = {"x": X, "y": Y, **given}
    with pytest.raises(UsageError, match=message):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(**arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y, Y, Y), r"^fit: validation_data must be x, \(x, y\) or \(x, y, sam"),
        ((X[:0], Y[:0]), r"^fit: validation_data: .*the data set must not be empty"),
        ((X, Y[:-1]), r"^fit: validation_data: .*arrays must have equal lengths"),
    ],
    ids=["four", "empty", "unequal"],
)
def test_validation_data_are_checked_before_the_training(tmp_path, data, message):
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
    with pytest.raises(UsageError, match=message):
        estimator.fit(X, Y, **SETTINGS, validation_data=data)
    assert checkpoints.latest(tmp_path) is None


class Batches(keras.utils.PyDataset):
    """Batches by index, which is valid beyond the last one, too."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        rows = slice(BATCH * (number % 4), BATCH * (number % 4 + 1))
        return X[rows], Y[rows]


class Changing(Batches):
    """Batches that change after each epoch."""

    def on_epoch_end(self):
        """Do nothing."""


class Ten(Batches):
    """More batches, which repeat."""

    def __len__(self):
        return 10


def generated():
    for number in range(10):
        yield Batches()[number]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Batches, {"epochs": 2}),
        (Batches, {"epochs": 3, "steps_per_epoch": 2}),
        (Ten, {"epochs": 2, "steps_per_epoch": 3}),
        (generated, {"epochs": 2, "steps_per_epoch": 3}),
    ],
    ids=["PyDataset", "a divisor", "less than all batches", "generator"],
)
def test_fit_takes_batches_as_keras_does(tmp_path, make, options):
    model = mlp()
    valid = {"validation_data": Batches(), "validation_steps": 2}
    history = model.fit(make(), **options, **valid, shuffle=False, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
    results = estimator.fit(make(), **options, **valid).history
    assert_equal_weights(estimator.keras_model, model)
    assert results.keys() == history.keys()
    for name, values in history.items():
        assert results[name] == pytest.approx(values, rel=1e-5), name


class Lengths(keras.callbacks.Callback):
    """Numbers of steps of the epochs."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_epoch_begin(self, epoch, logs=None):
        self.found.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.found[-1] += 1


@pytest.mark.parametrize(("steps", "lengths"), [(4, [4, 4, 2]), (12, [10, 10, 10])])
def test_epochs_that_keras_ends_early_are_refused(tmp_path, steps, lengths):
    options, counted = {"epochs": 3, "steps_per_epoch": steps}, Lengths()
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        mlp().fit(Ten(), **options, callbacks=[counted], shuffle=False, verbose=0)
    assert counted.found == lengths
    message = (
        f"^fit: steps_per_epoch={steps} does not divide the 10 batches of x, .* {lengths[-1]} "
    )
    with pytest.raises(UsageError, match=message):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(Ten(), **options)


class Distilled(keras.Sequential):
    """Model whose loss contains another model's, with a signature without `training`."""

    def __init__(self, layers, teacher):
        super().__init__(layers)
        self.teacher = teacher

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        """Return the loss of the labels and the distance to the teacher."""
        distance = keras.ops.mean(keras.ops.square(self.teacher(x, training=False) - y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight) + distance


def test_a_loss_of_the_models_own_class_is_that_of_keras(tmp_path):
    def build():
        teacher = mlp()
        teacher.trainable = False
        seed(4)
        return compiled(Distilled([keras.Input((20,)), L.Dense(CLASSES)], teacher))

    model = build()
    history = model.fit(X, Y, **SETTINGS, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    results = estimator.fit(X, Y, **SETTINGS).history
    assert_equal_weights(estimator.keras_model, model)
    assert results["loss"] == pytest.approx(history["loss"], rel=1e-5)


def test_batches_that_change_between_epochs_are_refused(tmp_path):
    with pytest.raises(
        UsageError, match=r"^fit: Changing.on_epoch_end is not called, because each"
    ):
        KerasModelToCerebrasEstimator(mlp, tmp_path).fit(Changing())


def test_a_model_with_losses_of_its_own_needs_no_labels(tmp_path):
    def build():
        seed(5)
        model = keras.Sequential([keras.Input((20,)), L.Dense(3, activity_regularizer="l2")])
        model.compile("sgd")
        return model

    model = build()
    history = model.fit(X, **SETTINGS, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    assert estimator.fit(X, **SETTINGS).history["loss"] == pytest.approx(history["loss"], rel=1e-5)
    assert_equal_weights(estimator.keras_model, model)


def two_outputs():
    seed(3)
    features = keras.Input((20,))
    outputs = [L.Dense(CLASSES, name=name)(features) for name in ("one", "two")]
    model = keras.Model(features, outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_lists_of_arrays_are_those_of_several_outputs(tmp_path):
    labels, valid = [Y, Y[::-1].copy()], [Y[ODD], Y[ODD][::-1].copy()]
    given = {**SETTINGS, "validation_data": (X[ODD], valid)}
    model = two_outputs()
    history = model.fit(X, labels, **given, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(two_outputs, tmp_path)
    results = estimator.fit(X, labels, **given).history
    assert_equal_weights(estimator.keras_model, model)
    assert results.keys() == history.keys()
    for name in history:
        assert results[name] == pytest.approx(history[name], rel=1e-5), name


def test_fit_warns_once_of_samples_that_an_epoch_does_not_use(tmp_path, caplog):
    """The weights are those of Keras without these samples."""
    samples = 2 * BATCH + 5
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
    estimator.fit(X[:samples], Y[:samples], **SETTINGS)
    model = mlp()
    model.fit(X[: 2 * BATCH], Y[: 2 * BATCH], **SETTINGS, verbose=0)
    assert_equal_weights(estimator.keras_model, model)
    assert caplog.text.count(f"fit: 5 of {samples} samples are not used in each epoch") == 1


def test_a_prime_number_of_validation_samples_is_slow(tmp_path, caplog):
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
    estimator.fit(X, Y, **SETTINGS, validation_data=(X[:23], Y[:23]))
    assert (
        "fit: validation_data has 23 samples, which are evaluated in batches of 1," in caplog.text
    )


def adam():
    return mlp(keras.optimizers.Adam(0.01))


def test_an_optimizer_continues_from_its_steps_in_keras(tmp_path):
    """Also in a second run, which starts from the first one's checkpoint."""
    sample, model = batches("mlp"), adam()
    ours = adam()
    for each in (model, ours):
        for x, y in sample[:2]:
            each.train_on_batch(x, y)
    for last in (2, STEPS - 2):
        estimator = KerasModelToCerebrasEstimator(ours, tmp_path)
        estimator.train(lambda params: Dataset.from_batches(sample[2:]), max_steps=last)
    for x, y in sample[2:]:
        model.train_on_batch(x, y)
    assert_equal_weights(ours, model)
    assert int(ours.optimizer.iterations) == STEPS


def test_a_given_checkpoint_decides_how_the_optimizer_continues(tmp_path):
    """A checkpoint with the optimizer's variables, or without them, and another model_dir."""
    sample = batches("mlp")

    def stepped():
        model = adam()
        model.train_on_batch(*sample[0])
        return model

    def input_fn(params):
        return Dataset.from_batches(sample[1:3])

    for name, build in (("recorded", stepped), ("ruled", adam)):
        KerasModelToCerebrasEstimator(build, tmp_path / name).train(input_fn, max_steps=1)
        again = KerasModelToCerebrasEstimator(adam, tmp_path / f"{name} on")
        again.train(input_fn, max_steps=2, checkpoint_path=tmp_path / name)
        model = build()
        for x, y in sample[1:3]:
            model.train_on_batch(x, y)
        assert_equal_weights(again.keras_model, model)


def test_a_saved_model_is_loaded_with_its_policy(tmp_path):
    def build():
        seed(1)
        options = {"dtype": "mixed_float16"}
        layers = [L.Dense(32, "relu", **options), L.Dense(CLASSES, **options)]
        return compiled(keras.Sequential([keras.Input((20,)), *layers]))

    def input_fn(params):
        return Dataset.from_batches(batches("mlp", 2))

    estimator = KerasModelToCerebrasEstimator(build, tmp_path / "first", CSRunConfig(log_steps=1))
    estimator.train(input_fn)
    estimator.keras_model.save(tmp_path / "saved.keras")
    loaded = keras.models.load_model(tmp_path / "saved.keras")
    assert loaded.layers[0].dtype_policy.name == "mixed_float16"
    assert_equal_weights(loaded, estimator.keras_model)
    again = KerasModelToCerebrasEstimator(loaded, tmp_path / "again")
    assert again.train(input_fn)["global_step"] == 2


def of_metrics(*metrics):
    """Model with these metrics."""

    def build():
        seed(1)
        model = keras.Sequential([keras.Input((20,)), L.Dense(8, "relu"), L.Dense(1, "sigmoid")])
        weighted = {"weighted_metrics": ["accuracy"]}
        model.compile("sgd", "binary_crossentropy", metrics=list(metrics), **weighted)
        return model

    return build


def test_metrics_are_those_of_keras(tmp_path):
    kinds = keras.metrics
    metrics = [kinds.AUC(), kinds.Precision(), kinds.F1Score(threshold=0.5), kinds.R2Score()]
    sample = [(x, (y % 2).astype(np.float32)[:, None]) for x, y in batches("mlp", 3)]
    weights = np.linspace(0, 2, BATCH, dtype=np.float32)
    weighted = [(x, y, weights) for x, y in sample]
    build = of_metrics("mae", *metrics)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    estimator.train(lambda params: Dataset.from_batches(weighted))
    results = estimator.evaluate(lambda params: Dataset.from_batches(weighted))
    x, y, w = (np.concatenate(each) for each in zip(*weighted, strict=True))
    model = build()
    for each, ours in zip(model.variables, estimator.keras_model.variables, strict=True):
        each.assign(ours)
    wanted = model.evaluate(x, y, batch_size=BATCH, sample_weight=w, verbose=0, return_dict=True)
    assert len(wanted) == 7
    for name, value in wanted.items():
        assert results[name] == pytest.approx(float(np.ravel(value)[0]), rel=1e-5, abs=1e-6), name


def test_a_metric_of_several_numbers_is_refused(tmp_path):
    sample = [(x, np.eye(CLASSES, dtype=np.float32)[y]) for x, y in batches("mlp", 1)]

    def build():
        model = keras.Sequential([keras.Input((20,)), L.Dense(CLASSES, "softmax")])
        model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
        return model

    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    estimator.train(lambda params: Dataset.from_batches(sample))
    with pytest.raises(UsageError, match=r"^metric f1_score has 10 numbers, and an evaluation"):
        estimator.evaluate(lambda params: Dataset.from_batches(sample))
