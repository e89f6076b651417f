"""The original's keys of mixed precision in a params file, and their contradictions."""

import logging
from typing import Annotated, Any

import msgspec
import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.params import RunConfig, load


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    width: int = 1


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: Network = Network()
    optimizer: nn.Optimizer = nn.SGD(0.1)
    runconfig: RunConfig = RunConfig()


@pytest.fixture
def read(tmp_path):
    def read(text, schema=Keys):
        path = tmp_path / "params.yaml"
        path.write_text(text)
        return load(schema, path)

    return read


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("model: {mixed_precision: true}", "mixed_float16"),
        ("model: {mixed_precision: false, width: 3}", "float32"),
        ("model: {mixed_precision: true, fp16_type: bfloat16}", "mixed_bfloat16"),
        ("model: {mixed_precision: true, use_bfloat16: true}", "mixed_bfloat16"),
        ("model: {mixed_precision: true, use_bfloat16: false}", "mixed_float16"),
        ("{model: {mixed_precision: true}, csconfig: {use_cbfloat16: true}}", "mixed_cbfloat16"),
        ("csconfig: {use_cbfloat16: false}", "float32"),
        ("{model: {fp16_type: float16}, runconfig: {precision: mixed_float16}}", "mixed_float16"),
        ("{model: {mixed_precision: false}, runconfig: {precision: float64}}", "float64"),
    ],
)
def test_the_precision_of_the_keys(read, text, precision):
    assert read(text).runconfig.precision == precision


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "csconfig: {use_cbfloat16: true}",
            "use_cbfloat16=True can only be used in mixed precision mode. Set mixed_precision to "
            "True.",
        ),
        ("model: {fp16_type: cbfloat16}", "fp16_type=cbfloat16 can only be used in mixed precisio"),
        (
            "{model: {mixed_precision: true}, runconfig: {precision: float32}}",
            "model.mixed_precision is True and runconfig.precision is float32: give one of them",
        ),
        (
            "model: {mixed_precision: true, fp16_type: float16, use_bfloat16: true}",
            "model.fp16_type is float16 and model.use_bfloat16 is True: give one of them",
        ),
        (
            "{csconfig: {use_cbfloat16: true}, runconfig: {precision: mixed_float16}}",
            "runconfig.precision is mixed_float16 and csconfig.use_cbfloat16 is True: give one",
        ),
        (
            "{model: {mixed_precision: true, fp16_type: cbfloat16}, "
            "csconfig: {use_cbfloat16: false}}",
            "model.fp16_type is cbfloat16 and csconfig.use_cbfloat16 is False: give one of them",
        ),
        (
            "{model: {use_bfloat16: false}, runconfig: {precision: mixed_bfloat16}}",
            "runconfig.precision is mixed_bfloat16 and model.use_bfloat16 is False: give one of",
        ),
        ("model: {precision_opt_level: 3}", "model.precision_opt_level: must be one of 0, 1, 2, g"),
        ("runconfig: {precision_opt_level: true}", "runconfig.precision_opt_level: must be one of"),
        (
            "{model: {precision_opt_level: 2}, runconfig: {precision_opt_level: 1}}",
            "runconfig.precision_opt_level is 1 and model.precision_opt_level is 2: give one of",
        ),
        ("model: {mixed_precision: 1}", "model.mixed_precision: must be one of true, false, got 1"),
        ("csconfig: {use_cbfloat: true}", "csconfig: unknown key"),
        (
            "{model: {mixed_precision: true}, runconfig: {precision: 16}}",
            "runconfig.precision: must be one of",
        ),
    ],
)
def test_contradictions_and_what_is_out_of_range(read, text, message):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in str(caught.value)


def test_what_has_no_effect_says_so(read, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    read("model: {precision_opt_level: 0, use_bfloat16: false}")
    assert not caplog.messages
    read("model: {precision_opt_level: 1, use_bfloat16: true}")
    assert caplog.messages == [
        "model.use_bfloat16 has no effect without model.mixed_precision: true",
        "model.precision_opt_level: 1 has no effect: sums and softmax are float32, as at level 0",
    ]
    caplog.clear()
    read("{model: {precision_opt_level: 0}, runconfig: {precision_opt_level: 0, max_steps: 2}}")
    assert not caplog.messages
    read("runconfig: {precision_opt_level: 2}")
    assert [line.partition(" has")[0] for line in caplog.messages] == [
        "runconfig.precision_opt_level: 2"
    ]


def test_bfloat16_is_not_scaled_dynamically(read, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    optimizer = "optimizer_type: sgd, learning_rate: 0.1, loss_scaling_factor: dynamic"
    text = f"{{model: {{mixed_precision: true, %s}}, optimizer: {{{optimizer}}}}}"
    assert read(text % "use_bfloat16: true").optimizer.loss_scaling() is None
    assert [line for line in caplog.messages if "loss_scaling_factor is 1.0" in line]
    assert read(text % "fp16_type: float16").optimizer.loss_scaling() is not None


class Mixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mixed"):
    mixed_precision: bool = False


class Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plain"):
    width: int = 1


@pytest.mark.parametrize(
    ("model", "tag", "precision"),
    [
        (dict[str, Any], "mixed", "float32"),
        (Any, "mixed", "float32"),
        (dict[str, Any] | None, "mixed", "float32"),
        (Mixed | None, "mixed", "float32"),
        (Mixed | Plain, "mixed", "float32"),
        (Plain | None, "plain", "mixed_float16"),
        (Annotated[Plain, msgspec.Meta(title="model")], "plain", "mixed_float16"),
    ],
)
def test_a_script_may_have_keys_of_these_names(read, model, tag, precision):
    schema = msgspec.defstruct("Own", [("model", model), ("runconfig", RunConfig, RunConfig())])
    params = read(f"model: {{type: {tag}, mixed_precision: true}}", schema)
    assert params.runconfig.precision == precision
