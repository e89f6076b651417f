"""Optimizer classes of scripts: recognized by their step, or refused with the difference."""

import pytest
from support.tf_models import (
    assert_as_in_session,
    batches,
    classifier,
    ignore_warnings,
    tf,
    trained,
    v1,
)

from csrun.base.errors import UsageError

pytestmark = ignore_warnings


def test_an_optimizer_without_a_rule_is_refused(tmp_path):
    make = lambda: v1.train.FtrlOptimizer(0.1)  # noqa: E731
    with pytest.raises(UsageError, match="this optimizer is not supported: use one of Adadelta"):
        trained(classifier(make), tmp_path, batches(1))


class AdamWOptimizer(v1.train.Optimizer):
    """AdamW as in BERT's code, whose weight decay an edit doubles."""

    def __init__(self, decay_factor):
        super().__init__(False, "AdamW")
        self.learning_rate, self.weight_decay_rate = 0.01, 0.1
        self.beta1, self.beta2, self.epsilon = 0.9, 0.999, 1e-6
        self.exclude_from_weight_decay = ["bias"]
        self._factor = decay_factor

    def _create_slots(self, var_list):
        for v in var_list:
            self._zeros_slot(v, "m", self._name)
            self._zeros_slot(v, "v", self._name)

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        next_m = self.beta1 * m + (1 - self.beta1) * grad
        next_v = self.beta2 * v + (1 - self.beta2) * grad * grad
        update = next_m / (tf.sqrt(next_v) + self.epsilon)
        if "bias" not in var.name:
            update += self._factor * self.weight_decay_rate * var
        next_var = var - self.learning_rate * update
        return tf.group(var.assign(next_var), m.assign(next_m), v.assign(next_v))


def test_an_edited_class_is_refused_with_the_difference(tmp_path):
    with pytest.raises(UsageError, match=r"its step of dense_?1?/kernel is not that of AdamW, by"):
        trained(classifier(lambda: AdamWOptimizer(2.0)), tmp_path, batches(1))


def test_an_unchanged_class_trains_as_in_a_session(tmp_path):
    make = lambda: AdamWOptimizer(1.0)  # noqa: E731
    assert_as_in_session(classifier(make), tmp_path, batches(), tolerance=2e-6)


class LAMBOptimizer(v1.train.Optimizer):
    """LAMB with the names of BERT's code. power: exponent of the ratio of norms."""

    def __init__(self, power=1.0):
        super().__init__(False, "LAMB")
        self.learning_rate, self.weight_decay_rate = 0.01, 0.1
        self.beta_1, self.beta_2, self.epsilon = 0.9, 0.999, 1e-6
        self.exclude_from_weight_decay, self._power = ["bias"], power

    def _create_slots(self, var_list):
        for v in var_list:
            self._zeros_slot(v, "m", self._name)
            self._zeros_slot(v, "v", self._name)

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        next_m = self.beta_1 * m + (1 - self.beta_1) * grad
        next_v = self.beta_2 * v + (1 - self.beta_2) * tf.square(grad)
        update = next_m / (tf.sqrt(next_v) + self.epsilon)
        if "bias" not in var.name:
            update += self.weight_decay_rate * var
        w_norm, g_norm = tf.norm(var), tf.norm(update)
        by_norms = tf.where(g_norm > 0, w_norm / g_norm, 1.0)
        ratio = tf.where(w_norm > 0, by_norms**self._power, 1.0)
        next_var = var - ratio * self.learning_rate * update
        return tf.group(var.assign(next_var), m.assign(next_m), v.assign(next_v))


def test_lamb_of_a_script_trains_as_in_a_session(tmp_path):
    assert_as_in_session(classifier(LAMBOptimizer), tmp_path, batches(), tolerance=2e-6)


def test_an_edited_lamb_is_refused_with_the_difference(tmp_path):
    with pytest.raises(UsageError, match=r"its step of dense\w*/\w+ is not that of Lamb, by"):
        trained(classifier(lambda: LAMBOptimizer(0.5)), tmp_path, batches(1))
