"""Sequence models with padding, dropout of any shape and sequence losses, against Keras."""

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import BATCH, L, compiled, keras, seed

from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
LENGTH, WORDS, TAGS = 6, 12, 4
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, WORDS, (2 * BATCH, LENGTH)).astype(np.int32)
IDS[:, 4:] = 0  # padding, of different lengths in the two batches
IDS[BATCH::2, 1:] = 0
LABELS = RANDOM.integers(0, TAGS, (2 * BATCH, LENGTH))
WEIGHTS = RANDOM.random((2 * BATCH, LENGTH)).astype(np.float32)
GIVEN = {"batch_size": BATCH, "epochs": 1, "shuffle": False}
SCE = keras.losses.SparseCategoricalCrossentropy


def tagger():
    """Tagger of the words of a sequence; Keras excludes padding from losses and metrics."""
    seed(1)
    ids = keras.Input((LENGTH,), dtype="int32")
    hidden = L.GRU(5, return_sequences=True)(L.Embedding(WORDS, 4, mask_zero=True)(ids))
    return keras.Model(ids, L.Dense(TAGS, name="tags")(hidden))


def weighted():
    model = tagger()
    options = {"metrics": ["accuracy"], "weighted_metrics": ["sparse_categorical_crossentropy"]}
    model.compile("sgd", SCE(from_logits=True), **options)
    return model


def two_outputs():
    model = tagger()
    last = L.Dense(TAGS, name="last")(L.GlobalAveragePooling1D()(model.layers[2].output))
    model = keras.Model(model.input, [model.output, last])
    model.compile("sgd", [SCE(from_logits=True)] * 2, metrics=[["accuracy"], ["accuracy"]])
    return model


@pytest.mark.parametrize(
    ("build", "labels", "options"),
    [
        (lambda: compiled(tagger()), LABELS, {}),
        (weighted, LABELS, {"sample_weight": WEIGHTS}),
        (two_outputs, [LABELS, LABELS[:, 0]], {}),
    ],
    ids=["metrics", "weighted metrics", "losses of outputs"],
)
def test_metrics_leave_out_padding_as_in_keras(tmp_path, build, labels, options):
    model = build()
    wanted = model.fit(IDS, labels, **GIVEN, **options, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    found = estimator.fit(IDS, labels, **GIVEN, **options).history
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    labels = tuple(labels) if isinstance(labels, list) else labels
    arrays = (IDS, labels, *options.values())
    results = estimator.evaluate(lambda params: Dataset.from_arrays(*arrays).batch(BATCH))
    own = model.evaluate(IDS, labels, batch_size=BATCH, **options, verbose=0, return_dict=True)
    for name, value in own.items():
        assert results[name] == pytest.approx(value, rel=1e-5), name


def test_sequences_are_aligned_by_ctc_as_in_keras(tmp_path):
    """Keras casts labels to floats."""
    x = RANDOM.standard_normal((BATCH, 8, 5)).astype(np.float32)
    y = RANDOM.integers(1, TAGS, (BATCH, 3)).astype(np.int32)

    def build():
        seed(2)
        model = keras.Sequential([keras.Input((8, 5)), L.Dense(TAGS)])
        model.compile("sgd", keras.losses.CTC())
        return model

    model = build()
    wanted = model.train_on_batch(x, y)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    found = estimator.fit(x, y, batch_size=BATCH).history["loss"]
    assert found == pytest.approx([float(wanted)], rel=1e-5)
    for each, theirs in zip(estimator.keras_model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(each, theirs, rtol=1e-5, atol=1e-6)


def learned_dropout_scales(layer, folder, micro_batch=0):
    """Gradients of weights by which dropped-out ones are multiplied: sums over samples."""

    def build():
        outputs = L.Dense(1, use_bias=False)
        model = keras.Sequential([keras.Input((LENGTH, 5)), layer, L.Flatten(), outputs])
        outputs.kernel.assign(np.zeros((LENGTH * 5, 1)))
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: -keras.ops.sum(p) / BATCH)
        return model

    config = CSRunConfig(seed=3, **({"micro_batch_size": micro_batch} if micro_batch else {}))
    estimator = KerasModelToCerebrasEstimator(build, folder, config)
    estimator.fit(np.ones((BATCH, LENGTH, 5), np.float32), np.zeros(BATCH), batch_size=BATCH)
    return estimator.keras_model.get_weights()[0].reshape(LENGTH, 5) * BATCH / 2


def test_spatial_dropout_drops_channels_of_a_sample(tmp_path):
    found = learned_dropout_scales(L.SpatialDropout1D(0.5), tmp_path / "whole")
    np.testing.assert_allclose(found, np.broadcast_to(found[:1], found.shape), rtol=1e-6)
    np.testing.assert_allclose(found, found.round(), rtol=1e-6)
    assert 2 < found.mean() < 14
    assert len(np.unique(found.round())) > 1
    parts = learned_dropout_scales(L.SpatialDropout1D(0.5), tmp_path / "parts", 4)
    np.testing.assert_allclose(parts, found, rtol=1e-6)


def test_seeded_dropout_uses_csruns_masks(tmp_path):
    found = learned_dropout_scales(L.Dropout(0.5, seed=1), tmp_path)
    assert 4 < found.mean() < 12
    assert len(np.unique(found[:, 0].round())) > 1


@pytest.mark.parametrize("recurrent", [0.0, 0.5])
def test_a_recurrent_cell_has_a_dropout_mask_for_each_sample(tmp_path, recurrent):
    """Equal in micro-batches, except with dropout of the state."""
    x = np.ones((BATCH, 3, 4), np.float32)

    def build():
        seed(4)
        layer = L.LSTM(3, dropout=0.5, recurrent_dropout=recurrent)
        model = keras.Sequential([keras.Input((3, 4)), layer, L.Dense(1)])
        model.compile("sgd", "mse")
        return model

    weights = []
    for parts in (1,) if recurrent else (1, 4):
        config = CSRunConfig(seed=3, **({"micro_batch_size": BATCH // parts} if parts > 1 else {}))
        estimator = KerasModelToCerebrasEstimator(build, tmp_path / str(parts), config)
        estimator.fit(x, np.ones((BATCH, 1)), batch_size=BATCH)
        weights.append(estimator.keras_model.get_weights())
    for whole, part, first in zip(weights[0], weights[-1], build().get_weights(), strict=True):
        np.testing.assert_allclose(part, whole, rtol=1e-5, atol=1e-6)
        assert np.abs(whole - first).max() > 0
