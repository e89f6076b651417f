"""Errors in model functions: one line with the layer, the value found, and the source line."""

from pathlib import Path

import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.estimator import CSEstimatorSpec
from csrun.nn.errors import TraceError
from csrun.nn.tracer import Tracer


@pytest.fixture
def tracer():
    with Tracer() as one:
        yield one


@pytest.fixture
def features(tracer):
    return tracer.input("features", (4, 6), "float32")


def message_of(call, *arguments):
    """Message of the error that a call raises."""
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    return str(caught.value)


def test_the_users_file_and_line_come_first(tracer):
    vector = tracer.input("vector", (4,), "float32")
    lines = Path(__file__).read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if line.endswith("(vector)  # the mistake"))

    def model():
        return nn.Dense(3)(vector)  # the mistake

    assert message_of(model).startswith(f"{__file__}:{number}: layer dense: ")


def test_labels_of_another_length_name_both_shapes(tracer, features):
    labels = tracer.input("labels", (5,), "int32")
    message = message_of(nn.softmax_cross_entropy, nn.Dense(10)(features), labels)
    assert message.endswith(
        "softmax_cross_entropy: labels must have one entry per row of [4, 10], got shape [5]"
    )


def test_labels_must_be_integers(tracer, features):
    labels = tracer.input("labels", (4,), "float32")
    message = message_of(nn.softmax_cross_entropy, nn.Dense(10)(features), labels)
    assert "labels must be integers, got" in message


def test_a_dense_layer_of_integers_names_the_layer(tracer):
    message = message_of(nn.Dense(3, name="fc"), tracer.input("x", (4, 6), "int32"))
    assert "layer fc: operands must have the same element type, got " in message


def test_shapes_that_do_not_broadcast(tracer, features):
    other = tracer.input("other", (4, 5), "float32")
    assert "shapes [4, 6] and [4, 5] do not broadcast" in message_of(lambda: features + other)


@pytest.mark.parametrize("units", [0, -3, 2.5, True, "ten"])
def test_units_must_be_positive_integers(units):
    assert f"Dense: units must be a positive integer, got {units!r}" in message_of(nn.Dense, units)


def test_an_unknown_activation_suggests_the_nearest():
    assert message_of(nn.Dense, 3, "rleu").endswith("got 'rleu'; did you mean 'relu'?")


def test_an_unknown_activation_lists_the_known_ones():
    assert "activation must be one of relu, relu6, leaky_relu, " in message_of(nn.Dense, 3, "rellu")


@pytest.mark.parametrize("name", ["", "a b", "/a", "a/", "1st"])
def test_a_malformed_layer_name(features, name):
    assert repr(name) in message_of(nn.Dense(3, name=name), features)


def test_a_layer_name_that_is_taken(features):
    nn.Dense(3, name="fc")(features)
    assert "layer name 'fc' is already used" in message_of(nn.Dense(3, name="fc"), features)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((-0.1,), "learning_rate must be >= 0, got -0.1"),
        ((float("nan"),), "learning_rate must be >= 0, got nan"),
        ((0.1, 1.0), "momentum must be in [0, 1), got 1.0"),
        (("fast",), "learning_rate must be a number or a schedule such as nn.schedules.Cosine("),
    ],
)
def test_an_optimizer_out_of_range(arguments, rule):
    assert rule in message_of(nn.SGD, *arguments)


def test_branching_on_a_traced_value(features):
    assert "a traced tensor has no value" in message_of(bool, features)


def test_a_tensor_of_another_model(features):
    stranger = Tracer().input("x", (4, 6), "float32")
    assert "expected a tensor of this model" in message_of(lambda: features + stranger)


def test_an_axis_that_is_not_there(features):
    assert "axis 2 is out of range" in message_of(nn.argmax, features, 2)


def test_training_needs_a_loss_and_a_train_op(tracer, features):
    loss = nn.softmax_cross_entropy(features, tracer.input("labels", (4,), "int64"))
    with pytest.raises(TraceError, match="needs a loss"):
        tracer.finish(RunMode.TRAIN, None, None, [])
    with pytest.raises(TraceError, match="needs a train_op"):
        tracer.finish(RunMode.TRAIN, loss, None, [])


def test_a_loss_must_be_one_number(tracer, features):
    with pytest.raises(TraceError, match=r"loss must be a scalar, got shape \[4, 6\]"):
        tracer.finish(RunMode.EVAL, features, None, [])
    message = message_of(nn.SGD(0.1).minimize, nn.sum(features, -1))
    assert (
        "the loss must be a scalar, got shape [4]: reduce it, for example by nn.mean(loss)"
        in message
    )


def test_an_optimizer_is_no_train_op(features):
    message = message_of(lambda: CSEstimatorSpec(nn.TRAIN, nn.mean(features), nn.Adam(0.01)))
    assert message.startswith(f"{__file__}:")
    assert message.endswith("got Adam: write train_op=nn.Adam(...).minimize(loss)")


def test_pairs_of_samples_by_broadcasting_are_warned_of(tracer, features, caplog):
    column, row = features[:, :1], features[:, 0]
    assert (column - row).shape == (4, 4)
    (record,) = caplog.records
    assert "sub: shapes [4, 1] and [4] broadcast every sample" in record.getMessage()
    caplog.clear()
    _ = column - features[:1, 0], features - nn.Bias()(features)[0], row[:, None] - row[None]
    assert not caplog.records
