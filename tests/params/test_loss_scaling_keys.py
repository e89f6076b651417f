"""Keys of loss scaling and clipping in the optimizer section, and their contradictions."""

import msgspec
import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.cirh.ops.learning import UNLIMITED
from csrun.executable.loss_scale import LossScaling
from csrun.params import load


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    optimizer: nn.Optimizer


@pytest.fixture
def read(tmp_path):
    def read(keys):
        path = tmp_path / "params.yaml"
        path.write_text(f"optimizer: {{optimizer_type: sgd, learning_rate: 0.1, {keys}}}\n")
        return load(Params, path).optimizer

    return read


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ("loss_scaling_factor: 1.0", None),
        ("loss_scaling_factor: 128", LossScaling(128.0, is_dynamic=False)),
        ("loss_scale: 128.0", LossScaling(128.0, is_dynamic=False)),
        ("loss_scaling_factor: dynamic", LossScaling()),
        ("loss_scale: tf_dynamic, loss_scaling_factor: tf_dynamic", LossScaling()),
        (
            "loss_scaling_factor: dynamic, initial_loss_scale: 1024.0, steps_per_increase: 10,"
            " min_loss_scale: 0.5, max_loss_scale: 4096.0, overflow_tolerance: 0.1",
            LossScaling(1024.0, 10, 0.5, 4096.0, 0.1),
        ),
    ],
)
def test_the_rule_of_the_keys(read, keys, scaling):
    assert read(keys).loss_scaling() == scaling


def test_max_gradient_norm_is_clip_norm(read):
    assert read("max_gradient_norm: 1.0").clipping().clip_norm == 1.0
    assert read("max_gradient_norm: 0").clipping() == UNLIMITED


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("loss_scale: 2.0, loss_scaling_factor: dynamic", "loss_scale is 2.0 and loss_scaling_"),
        ("loss_scaling_factor: sometimes", "loss_scaling_factor"),
        ("loss_scaling_factor: -1", "loss_scaling_factor must be > 0 and finite, got -1"),
        ("loss_scaling_factor: dynamic, min_loss_scale: 1e-6", "min_loss_scale too small"),
        ("loss_scaling_factor: dynamic, max_loss_scale: 1e39", "max_loss_scale must be at most"),
        ("loss_scaling_factor: dynamic, overflow_tolerance: -1", "overflow_tolerance must be >= 0"),
        ("max_gradient_norm: 1, max_gradient_value: 1", "max_gradient_norm or max_gradient_value"),
        ("clip_norm: 1, max_gradient_value: 2", "give one of them"),
        ("max_gradient_norm: -1", "max_gradient_norm must be >= 0, got -1"),
        ("max_gradient_norm: 1, clip_norm: 2", "clip_norm is 2.0 and max_gradient_norm is 1.0"),
    ],
)
def test_contradictions_and_what_is_out_of_range(read, keys, message):
    with pytest.raises(UsageError) as caught:
        read(keys)
    assert message in str(caught.value)
    assert "got {" not in str(caught.value)
