"""Forms of a Keras model and its data; invalid ones are refused with a line."""

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import BATCH, CLASSES, L, batches, compiled, keras, mlp, seed

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def values(model):
    return [v.value.detach().cpu().numpy().copy() for v in model.variables]


def test_fit_trains_on_arrays_and_the_model_has_the_weights(tmp_path):
    x, y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
    model, own = mlp(), mlp()
    estimator = KerasModelToCerebrasEstimator(keras_model=model, model_dir=tmp_path)
    assert estimator.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False).global_step == 8
    assert estimator.keras_model is model
    own.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    for ours, wanted in zip(values(model), values(own), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


def test_train_and_evaluate_gives_the_weights_back_too(tmp_path):
    model = mlp()
    before = values(model)
    estimator = KerasModelToCerebrasEstimator(
        model, tmp_path, CSRunConfig(save_checkpoints_steps=1)
    )
    sample = batches("mlp", 2)
    results = estimator.train_and_evaluate(
        lambda params: Dataset.from_batches(sample), lambda params: Dataset.from_batches(sample), 2
    )
    assert results["global_step"] == 2
    assert results["loss"] == pytest.approx(
        np.mean([model.evaluate(x, y, verbose=0)[0] for x, y in sample]), rel=1e-5
    )
    assert not all(map(np.array_equal, before, values(model)))


def test_samples_have_weights(tmp_path):
    weights = np.linspace(0, 2, BATCH, dtype=np.float32)
    sample = [((x, y), weights) for x, y in batches("mlp", 3)]
    weighted = [(x, y, w) for (x, y), w in sample]
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path)
    estimator.train(lambda params: Dataset.from_batches(weighted))
    model = mlp()
    for x, y, w in weighted:
        model.train_on_batch(x, y, sample_weight=w)
    for ours, wanted in zip(values(estimator.keras_model), values(model), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


def test_names_are_the_same_whatever_was_built_before(tmp_path):
    def build(params):
        assert params == {"width": 3}
        layers = [keras.Input((20,)), L.Dense(params["width"]), L.Dense(CLASSES)]
        return compiled(keras.Sequential(layers))

    def input_fn(params):
        return Dataset.from_batches(batches("mlp", 2))

    for step in (1, 2):
        mlp()  # numbers its layers
        estimator = KerasModelToCerebrasEstimator(build, tmp_path, params={"width": 3})
        estimator.train(input_fn, max_steps=step)
    found = checkpoints.latest(tmp_path).manifest
    assert found.step == 2
    assert "sequential/dense_1/kernel" in found.tensors


def _model(width):
    return compiled(keras.Sequential([keras.Input((20,)), L.Dense(width), L.Dense(CLASSES)]))


def hidden_by_default(hidden=5):
    return _model(hidden)


def by_keyword(**options):
    return _model(options.get("hidden", 5))


def params_by_default(params=None):
    return _model(params["hidden"])


def first_required(config, hidden=3):
    return _model(config["hidden"])


@pytest.mark.parametrize(
    ("build", "params", "width"),
    [
        (hidden_by_default, None, 5),
        (hidden_by_default, {"hidden": 4}, 5),
        (by_keyword, None, 5),
        (params_by_default, {"hidden": 4}, 4),
        (first_required, {"hidden": 4}, 4),
    ],
)
def test_a_function_whose_arguments_have_defaults_gets_no_params(
    tmp_path, caplog, build, params, width
):
    model = KerasModelToCerebrasEstimator(build, tmp_path, params=params).keras_model
    assert model.layers[0].units == width
    is_left_out = build is hidden_by_default and params is not None
    assert ("model_fn hidden_by_default is called without params" in caplog.text) == is_left_out


def test_several_outputs_have_losses_and_metrics_of_their_own(tmp_path):
    def build():
        seed(1)
        x = keras.Input((20,))
        hidden = L.Dense(8, "relu")(x)
        outputs = {
            "digit": L.Dense(CLASSES, name="digit")(hidden),
            "size": L.Dense(1, name="size")(hidden),
        }
        model = keras.Model(x, outputs)
        digit = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", {"digit": digit, "size": "mse"}, {"digit": 1.0, "size": 0.5},
                      metrics={"digit": ["accuracy"], "size": ["mae"]})  # fmt: skip
        return model

    sample = [(x, {"digit": y, "size": x[:, :1]}) for x, y in batches("mlp", 3)]
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    estimator.train(lambda params: Dataset.from_batches(sample))
    model = build()
    for x, y in sample:
        model.train_on_batch(x, y)
    for ours, wanted in zip(values(estimator.keras_model), values(model), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
    results = estimator.evaluate(lambda params: Dataset.from_batches(sample[:1]))
    own = model.evaluate(*sample[0], batch_size=BATCH, verbose=0, return_dict=True)
    for name in ("loss", "digit_accuracy", "size_mae"):
        assert results[name] == pytest.approx(own[name], rel=1e-5)
    (first, *_) = estimator.predict(lambda params: Dataset.from_batches(sample[:1]))
    assert {name: value.shape for name, value in first.items()} == {
        "digit": (CLASSES,),
        "size": (1,),
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give one of model_fn, model and keras_model, got 0"),
        ({"model": 1, "keras_model": 2}, "give one of model_fn, model and keras_model, got 2"),
        ({"model": 1}, "model_fn must be a Keras model or a function that returns one, got int"),
        ({"model_fn": lambda: 1}, "model_fn must return a Keras model, got int"),
        (
            {"model_fn": lambda: keras.Sequential([keras.Input((20,)), L.Dense(2)], name="plain")},
            "Keras model 'plain' is not compiled: call",
        ),
    ],
)
def test_what_is_no_compiled_model_is_refused(tmp_path, given, message):
    with pytest.raises(UsageError, match=message):
        KerasModelToCerebrasEstimator(**given, model_dir=tmp_path).train(
            lambda params: Dataset.from_batches(batches("mlp", 1))
        )


def test_the_original_name_of_the_estimator_is_importable():
    from cerebras.tf.cs_model_to_estimator import KerasModelToCerebrasEstimator as Original

    assert Original is KerasModelToCerebrasEstimator


def test_a_float64_run_is_refused(tmp_path):
    estimator = KerasModelToCerebrasEstimator(mlp, tmp_path, CSRunConfig(precision="float64"))
    with pytest.raises(
        UsageError, match="precision must be float32, or mixed, for a Keras model, got float64"
    ):
        estimator.train(lambda params: Dataset.from_batches(batches("mlp", 1)))
