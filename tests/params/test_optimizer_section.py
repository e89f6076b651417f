"""The optimizer section of a params file: every optimizer and schedule, and every refusal."""

import msgspec
import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.params import load


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    optimizer: nn.Optimizer


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "params.yaml"
        path.write_text(f"optimizer: {text}\n")
        return load(Params, path).optimizer

    return read


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        ("{optimizer_type: sgd, learning_rate: 0.1}", nn.SGD(0.1)),
        ("{optimizer_type: adam, learning_rate: 1, beta1: 0.8}", nn.Adam(1.0, beta1=0.8)),
        ("{optimizer_type: sgd, learning_rate: 1e-2}", nn.SGD(0.01)),
        ("{optimizer_type: sgd, learning_rate: 1, clip_norm: 1}", nn.SGD(1.0, clip_norm=1.0)),
        (
            "{optimizer_type: rmsprop, learning_rate: 1e-3, centered: true, momentum: 0.9}",
            nn.RMSProp(0.001, centered=True, momentum=0.9),
        ),
        (
            "{optimizer_type: adam, learning_rate: 1, epsilon_hat: true, bias_correction: false}",
            nn.Adam(1.0, epsilon_hat=True, bias_correction=False),
        ),
        (
            "{optimizer_type: adamw, learning_rate: 0.1, exclude_from_weight_decay: [bias]}",
            nn.AdamW(0.1, exclude_from_weight_decay=("bias",)),
        ),
        (
            "{optimizer_type: sgd, learning_rate: {scheduler: piecewise_constant,"
            " boundaries: [5], values: [0.1, 0.01], warmup_steps: 2}}",
            nn.SGD(
                nn.schedules.PiecewiseConstant(boundaries=(5,), values=(0.1, 0.01), warmup_steps=2)
            ),
        ),
    ],
)
def test_a_section_is_an_optimizer(read, text, optimizer):
    assert read(text) == optimizer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{learning_rate: 0.1}", "optimizer: missing required field optimizer_type, one of sgd, a"),
        (
            "{optimizer_type: adamm, learning_rate: 1}",
            "optimizer.optimizer_type: must be one of sgd, adam, adamw, lamb, adagrad, "
            "rmsprop, got 'adamm'; "
            "did you mean adam?",
        ),
        (
            "{optimizer_type: sgd, learning_rate: {scheduler: lin}}",
            "optimizer.learning_rate.scheduler: must be one of constant, linear, cosine, "
            "polynomial, exponential, piecewise_constant, got 'lin'",
        ),
        (
            "{optimizer_type: sgd, learning_rate: {scheduler: linear, stepz: 3}}",
            "optimizer.learning_rate.stepz: unknown key; did you mean steps?",
        ),
        ("{optimizer_type: adam, momentum: 3}", "optimizer.momentum: unknown key"),
        ("{optimizer_type: sgd, learning_rate: -1}", "optimizer.learning_rate: "),
        ("{optimizer_type: sgd, learning_rate: 1, clip_norm: 0}", "optimizer.clip_norm: "),
        (
            "{optimizer_type: sgd, learning_rate: .nan}",
            "optimizer.learning_rate: must be a finite number, got nan",
        ),
        ("{optimizer_type: sgd, learning_rate: 1, nesterov: true}", "nesterov needs a momentum"),
        (
            "{optimizer_type: sgd, learning_rate: {scheduler: piecewise_constant,"
            " boundaries: [5], values: [0.1]}}",
            "optimizer.learning_rate: there must be one more value than boundaries",
        ),
    ],
)
def test_a_wrong_section_is_refused_with_its_key_and_the_known_ones(read, text, message):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "params.yaml: " in str(caught.value)
