"""Keras optimizers as algorithms of csrun, against Keras's steps; others are refused by name."""

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import CLASSES, STEPS, L, batches, compiled, keras, mlp, seed

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OPTIMIZERS, SCHEDULES = keras.optimizers, keras.optimizers.schedules


class OwnSgd(OPTIMIZERS.SGD):
    """User-defined optimizer with an unknown step."""

    def update_step(self, gradient, variable, learning_rate):
        """Take half of the step."""
        super().update_step(gradient, variable, learning_rate / 2)


class HalvingSgd(OPTIMIZERS.SGD):
    """Optimizer that assigns its learning rate."""

    def apply(self, grads, trainable_variables=None):
        """Apply gradients, and halve the rate."""
        super().apply(grads, trainable_variables)
        self._learning_rate.assign(self._learning_rate / 2)


class OwnSchedule(SCHEDULES.LearningRateSchedule):
    """User-defined schedule that depends on the step."""

    def __call__(self, step):
        return keras.ops.cond(step < 2, lambda: 0.1, lambda: 0.2 / keras.ops.cast(step, "float32"))


MADE = {
    "sgd": lambda: OPTIMIZERS.SGD(0.1, weight_decay=0.1),
    "sgd nesterov": lambda: OPTIMIZERS.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: OPTIMIZERS.Adam(0.01, epsilon=1e-3),
    "adam decayed": lambda: OPTIMIZERS.Adam(0.01, weight_decay=0.1),
    "adamw": lambda: OPTIMIZERS.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: OPTIMIZERS.RMSprop(0.01, epsilon=1e-2),
    "rmsprop centered": lambda: OPTIMIZERS.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: OPTIMIZERS.Adagrad(0.05, epsilon=1e-2),
    "adadelta": lambda: OPTIMIZERS.Adadelta(1.0),
    "amsgrad": lambda: OPTIMIZERS.Adam(0.01, amsgrad=True),
    "nadam": lambda: OPTIMIZERS.Nadam(0.01, weight_decay=0.1),
    "clipped": lambda: OPTIMIZERS.SGD(0.1, global_clipnorm=0.1),
    "each clipped": lambda: OPTIMIZERS.Adam(0.01, epsilon=1e-3, clipnorm=0.03),
    "clipped by value": lambda: OPTIMIZERS.SGD(0.1, momentum=0.9, clipvalue=0.002),
    "adamax": lambda: OPTIMIZERS.Adamax(0.01, weight_decay=0.1, clipnorm=0.03),
    "lion": lambda: OPTIMIZERS.Lion(
        0.001, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "ftrl": lambda: OPTIMIZERS.Ftrl(
        SCHEDULES.ExponentialDecay(0.1, 2, 0.5, staircase=True), beta=0.1
    ),
    "adafactor": lambda: OPTIMIZERS.Adafactor(0.01),
    "lamb": lambda: OPTIMIZERS.Lamb(0.01),
    "muon": lambda: OPTIMIZERS.Muon(0.01),
    "a class of the script's": lambda: OwnSgd(OwnSchedule(), momentum=0.9),
    "halving": lambda: HalvingSgd(0.1, momentum=0.9),
    "momentum decayed": lambda: OPTIMIZERS.SGD(
        SCHEDULES.CosineDecay(0.0, 4, warmup_target=0.1, warmup_steps=2),
        momentum=0.9,
        weight_decay=0.1,
    ),
    "piecewise": lambda: OPTIMIZERS.SGD(SCHEDULES.PiecewiseConstantDecay([1, 3], [0.1, 0.05, 0.2])),
    "polynomial": lambda: OPTIMIZERS.SGD(SCHEDULES.PolynomialDecay(0.1, 4, 0.01, power=2.0)),
    "exponential": lambda: OPTIMIZERS.SGD(SCHEDULES.ExponentialDecay(0.1, 2, 0.5)),
    "cosine": lambda: OPTIMIZERS.SGD(SCHEDULES.CosineDecay(0.1, 4, alpha=0.1)),
    "velocity of rates": lambda: OPTIMIZERS.SGD(
        SCHEDULES.ExponentialDecay(0.1, 2, 0.5), momentum=0.9, nesterov=True
    ),
    "rmsprop of rates": lambda: OPTIMIZERS.RMSprop(
        SCHEDULES.ExponentialDecay(0.01, 2, 0.5), momentum=0.9
    ),
}


def trained(make, sample, folder, config=None):
    """Estimator of a model after a training."""
    config = config or CSRunConfig(log_steps=STEPS)
    estimator = KerasModelToCerebrasEstimator(make, folder, config)
    estimator.train(lambda params: Dataset.from_batches(sample))
    return estimator


def assert_as_in_keras(ours, make, sample, name=""):
    """Assert that weights are those of Keras's training; return the same model in Keras."""
    model = make()
    for x, y in sample:
        model.train_on_batch(x, y)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    for found, own in zip(ours.variables, model.variables, strict=True):
        found, own = (v.value.detach().cpu().numpy() for v in (found, own))
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=2e-6, err_msg=name)
    return model


@pytest.mark.parametrize("name", MADE)
def test_weights_are_those_of_keras(tmp_path, name):
    sample = batches("mlp")
    make = lambda: mlp(MADE[name]())  # noqa: E731
    assert_as_in_keras(trained(make, sample, tmp_path).keras_model, make, sample, name)


def test_adam_rounds_the_betas_of_its_bias_correction_as_keras_does(tmp_path):
    """Weights from zero are sums of updates; exact betas would change the first by 6e-6 of it."""

    def build():
        dense = L.Dense(CLASSES, kernel_initializer="zeros")
        return compiled(keras.Sequential([keras.Input((20,)), dense]), OPTIMIZERS.Adam(0.01))

    sample = batches("mlp", 1)
    ours, theirs = trained(build, sample, tmp_path).keras_model, build()
    theirs.train_on_batch(*sample[0])
    for found, own in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, own, rtol=1.5e-6)


def test_a_variable_that_keras_does_not_decay_is_not_decayed(tmp_path):
    def build():
        optimizer = OPTIMIZERS.AdamW(0.01, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return mlp(optimizer)

    sample = batches("mlp", 2)
    assert_as_in_keras(trained(build, sample, tmp_path).keras_model, build, sample)


def test_a_run_resumes_between_batches_whose_gradients_are_accumulated(tmp_path):
    """After a training, as after fit(), the model has the averages; a checkpoint has weights."""

    def build():
        rate = SCHEDULES.ExponentialDecay(0.01, 2, 0.5)
        options = {"use_ema": True, "ema_momentum": 0.5, "clipnorm": 0.03}
        return mlp(OPTIMIZERS.Adam(rate, gradient_accumulation_steps=2, **options))

    sample = batches("mlp", 5)
    trained(build, sample[:3], tmp_path)
    resumed = trained(build, sample, tmp_path)
    assert_as_in_keras(resumed.keras_model, build, sample)
    (*_, last) = resumed.keras_model.optimizer.variables
    assert int(resumed.keras_model.optimizer._iterations.value) == 5
    assert last.value.abs().sum() > 0  # a moment of Adam's
    evaluated = resumed.evaluate(lambda params: Dataset.from_batches(sample))
    model = build()
    for x, y in sample:
        model.train_on_batch(x, y)
    own = np.mean([model.evaluate(x, y, verbose=0)[0] for x, y in sample])
    assert evaluated["loss"] == pytest.approx(own, rel=1e-5)


@pytest.mark.parametrize("rate", [0.1, 0.02], ids=["the same rate", "another rate"])
def test_a_changed_learning_rate_counts_in_a_resumed_run(tmp_path, rate):
    """The script's rate is compared with that of the first run, which the optimizer has changed."""
    sample = batches("mlp", 4)
    trained(lambda: mlp(HalvingSgd(0.1, momentum=0.9)), sample[:2], tmp_path)
    resumed = trained(lambda: mlp(HalvingSgd(rate, momentum=0.9)), sample, tmp_path)
    model = mlp(HalvingSgd(0.1, momentum=0.9))
    for step, (x, y) in enumerate(sample):
        if step == 2 and rate != 0.1:
            model.optimizer.learning_rate = rate
        model.train_on_batch(x, y)
    for found, own in zip(resumed.keras_model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=2e-6)


def test_weights_with_a_constraint_keep_to_it(tmp_path):
    def build():
        seed(1)
        limit = keras.constraints.MaxNorm(0.5)
        layers = [keras.Input((20,)), L.Dense(CLASSES, kernel_constraint=limit)]
        return compiled(keras.Sequential(layers), OPTIMIZERS.SGD(0.1))

    sample = batches("mlp", 2)
    assert_as_in_keras(trained(build, sample, tmp_path).keras_model, build, sample)


class ReadingSgd(OPTIMIZERS.SGD):
    """Optimizer that depends on the value of a gradient."""

    def update_step(self, gradient, variable, learning_rate):
        """Skip the step if the gradient is small."""
        if gradient.abs().sum() > 1e-3:
            super().update_step(gradient, variable, learning_rate)


class AssigningSgd(OPTIMIZERS.SGD):
    """Optimizer that assigns a variable of a generator."""

    def build(self, variables):
        """Create another generator of noise."""
        super().build(variables)
        self.noise = keras.random.SeedGenerator(1)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.noise.next()


REFUSED = {
    "optimizer AssigningSgd: its update assigns .*seed.*, which is not among": lambda: AssigningSgd(
        0.1
    ),
    "optimizer ReadingSgd: csrun cannot record its update: .* is read": lambda: ReadingSgd(0.1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path, message):
    with pytest.raises(UsageError, match="^" + message):
        trained(lambda: mlp(REFUSED[message]()), batches("mlp", 1), tmp_path)
    assert not list(tmp_path.glob("model-ckpt*"))


def test_a_learning_rate_that_is_a_function_is_refused(tmp_path):
    make = lambda: mlp(OPTIMIZERS.Adam(lambda: 0.1))  # noqa: E731
    with pytest.raises(UsageError, match=r"^optimizer Adam: learning_rate is a function, which"):
        trained(make, batches("mlp", 1), tmp_path)


QUICK = ("adam", "adamax")  # an algorithm of csrun's, and a recorded update
SLOW = ("lion", "muon", "adafactor", "a class of the script's")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_weights_of_micro_batches_are_those_of_keras(tmp_path, name):
    """A run resumes with another number of micro-batches: checkpoints have no sums of gradients."""

    def build():
        return mlp(MADE[name]())

    sample = batches("mlp")
    trained(build, sample[:2], tmp_path)
    config = CSRunConfig(log_steps=STEPS, micro_batch_size=4)
    ours = trained(build, sample, tmp_path, config)
    assert_as_in_keras(ours.keras_model, build, sample, name)
    newest = checkpoints.latest(tmp_path)
    assert not any("gradients/" in name for name in newest.manifest.tensors)


def test_more_steps_than_float32_counts_are_refused_of_a_recorded_update(tmp_path):
    make = lambda: mlp(OPTIMIZERS.Adamax(0.1))  # noqa: E731
    with pytest.raises(UsageError, match=r"optimizer Adamax: .* up to 16777216, got max_steps"):
        KerasModelToCerebrasEstimator(make, tmp_path).train(
            lambda params: Dataset.from_batches(batches("mlp", 1)), max_steps=2**24 + 1
        )
