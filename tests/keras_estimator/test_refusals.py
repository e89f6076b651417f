"""Keras models that csrun cannot record: refused with the layer and the model's line."""

import random
import re

import numpy as np
import pytest
import torch

pytest.importorskip("torch")

from support.keras_models import CLASSES, L, batches, compiled, keras

from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ops = keras.ops
HERE = re.escape(__file__)


class Own(L.Layer):
    """User-defined layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        """Return the function of the features."""
        return self.function(x)


def bessel(x):
    return x + torch.special.bessel_j0(x)


def noise(x):
    return x + torch.randn_like(x)


def numpy_noise(x):
    return x + ops.convert_to_tensor(np.random.normal(size=(1, 8)), "float32")


def python_noise(x):
    return x * random.random()


def chosen_rows(x):
    return x[ops.sum(x, axis=-1) > 0]


def branch(x):
    return x if ops.sum(x) > 0 else -x


class Assigning(L.Dense):
    """Layer that masks its kernel in place."""

    def call(self, x):
        self.kernel.assign(self.kernel * 0.5)
        return super().call(x)


class Counting(L.Dense):
    """Layer that counts calls in an integer."""

    def build(self, shape):
        super().build(shape)
        self.count = self.add_weight((), "zeros", dtype="int32", trainable=False, name="count")

    def call(self, x):
        self.count.assign(self.count + 1)
        return super().call(x) * ops.cast(self.count, "float32")


DRAWS = (
    "it draws random numbers by PyTorch, whose generator does not run in a step: use keras.random"
)
REFUSED = {
    rf"layer sequential/own: {HERE}:\d+: aten.special_bessel_j0.default: PyTorch": Own(bessel),
    rf"layer sequential/own_1: {HERE}:\d+: {DRAWS}": Own(noise),
    "the Keras model draws numbers from numpy.random, and csrun calls it": Own(numpy_noise),
    "the Keras model draws numbers from random, and csrun calls it once": Own(python_noise),
    "variable sequential/assigning/kernel is trained, and a layer assigns it in": Assigning(8),
    rf"{HERE}:\d+: the step assigns .*/count, which is constant in csrun: make": Counting(8),
    rf"{HERE}:\d+: .*the shape of its result depends on the data": Own(chosen_rows),
    rf"{HERE}:\d+: forward reads the value of a traced tensor": Own(branch),
}


class OwnEvaluation(keras.Sequential):
    """Model with its own test_step."""

    def test_step(self, data):
        return 1.0


class OwnPrediction(keras.Sequential):
    """Model with its own make_predict_function."""

    def make_predict_function(self, force=False):
        """Return a function that does nothing."""
        self.predict_function = lambda data: {}


class OwnFunction(keras.Sequential):
    """Model with its own make_train_function."""

    def make_train_function(self, force=False):
        """Return a function that does nothing."""
        self.train_function = lambda data: {}


def test_a_step_of_the_models_own_class_is_refused_and_not_left_out(tmp_path):
    def estimator(kind, folder):
        build = lambda: compiled(kind([keras.Input((20,)), L.Dense(CLASSES)]))  # noqa: E731
        return KerasModelToCerebrasEstimator(build, tmp_path / folder)

    def input_fn(params):
        return Dataset.from_batches(batches("mlp", 1))

    with pytest.raises(UsageError, match=r"OwnFunction.make_train_function is not called: csrun"):
        estimator(OwnFunction, "made").train(input_fn)
    evaluated = estimator(OwnEvaluation, "evaluated")
    evaluated.train(input_fn)
    with pytest.raises(UsageError, match=rf"^{HERE}:\d+: OwnEvaluation.test_step returns a float:"):
        evaluated.evaluate(input_fn)
    predicted = estimator(OwnPrediction, "predicted")
    predicted.train(input_fn)
    with pytest.raises(UsageError, match=r"OwnPrediction.make_predict_function is not called"):
        next(predicted.predict(lambda _: Dataset.from_batches([(batches("mlp", 1)[0][0],)])))


@pytest.mark.parametrize("message", REFUSED)
def test_a_layer_is_refused_with_its_line(message, tmp_path):
    def build():
        layers = [keras.Input((20,)), L.Dense(8), REFUSED[message], L.Dense(CLASSES)]
        return compiled(keras.Sequential(layers))

    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    with pytest.raises(UsageError, match=f"^{message}"):
        estimator.train(lambda params: Dataset.from_batches(batches("mlp", 1)))


def test_a_layer_of_keras_that_cannot_be_recorded_is_named(tmp_path):
    layers = [L.Reshape((4, 5, 1)), L.RandomCrop(2, 2, name="crop"), L.Flatten(), L.Dense(CLASSES)]
    model = compiled(keras.Sequential([keras.Input((20,)), *layers]))
    named = r"^layer .*crop, a RandomCrop, cannot be recorded: apply it to the data in the input"
    with pytest.raises(UsageError, match=named):
        KerasModelToCerebrasEstimator(model, tmp_path).train(
            lambda params: Dataset.from_batches(batches("mlp", 1))
        )


def test_a_model_without_a_loss_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((20,)), L.Dense(CLASSES)], name="plain")
    model.compile("sgd")
    with pytest.raises(
        UsageError, match=r"^Keras model 'plain' has no loss: give compile.. a loss"
    ):
        KerasModelToCerebrasEstimator(model, tmp_path).train(
            lambda params: Dataset.from_batches(batches("mlp", 1))
        )
