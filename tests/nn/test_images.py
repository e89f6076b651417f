"""Image layers as called in a model function."""

import pytest

from csrun import nn
from csrun.cirh.ops.model import ParameterOp, StoredOp
from csrun.nn.errors import ShapeError, TraceError
from csrun.nn.tracer import Tracer


def shape_of(layer, shape=(2, 3, 8, 6)):
    with Tracer("float32") as tracer:
        return layer(tracer.input("features", shape, "float32")).shape


def test_a_convolution_keeps_the_size_with_padding_same():
    assert shape_of(nn.Conv2D(5, (3, 5), padding="same", dilation=(2, 1))) == (2, 5, 8, 6)


def test_a_convolution_names_its_parameters_and_draws_by_what_a_value_sees():
    """Glorot and Bengio 2010: fan-in of 3 channels x 4 pixels, fan-out of 5 x 4."""
    with Tracer("float32") as tracer:
        nn.Conv2D(5, 2)(tracer.input("features", (2, 3, 8, 6), "float32"))
    kernel, bias = (op for op in tracer.module.walk() if isinstance(op, ParameterOp))
    assert (kernel.symbol.data, bias.symbol.data) == ("conv2d/kernel", "conv2d/bias")
    bound = kernel.initializer.scale.value.data
    assert bound == pytest.approx((6 / (3 * 4 + 5 * 4)) ** 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": 0}, "filters must be a positive integer, got 0"),
        ({"kernel_size": (3, 0)}, r"kernel_size must be one or two integers >= 1, got \(3, 0\)"),
        ({"stride": (1, 2, 3)}, "stride must be one or two integers >= 1"),
        ({"padding": -1}, "padding must be one or two integers >= 0, got -1"),
        ({"padding": "valid"}, "padding must be one or two integers >= 0, got 'valid'"),
        ({"kernel_size": 2, "padding": "same"}, "padding 'same' needs stride 1 and an odd window"),
        ({"groups": True}, "groups must be a positive integer, got True"),
        ({"activation": "wave"}, "wave"),
    ],
)
def test_a_convolution_that_cannot_be_is_refused(options, message):
    with pytest.raises(TraceError, match=message):
        nn.Conv2D(**{"filters": 4, "kernel_size": 3, **options})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 8, 6), r"layer conv2d: the input must be images \[batch, channels, rows, columns\]"),
        ((2, 3, 2, 6), "layer conv2d: .*a window of 3 pixels does not fit 2"),
        ((2, 4, 8, 6), "layer conv2d: .*outputs divisible by groups"),
    ],
)
def test_images_that_do_not_fit_are_refused(shape, message):
    with pytest.raises(ShapeError, match=message):
        shape_of(nn.Conv2D(6, 3, groups=3), shape)


@pytest.mark.parametrize("layer", [nn.MaxPool, nn.AveragePool])
def test_a_pooling_that_cannot_be_is_refused(layer):
    with pytest.raises(TraceError, match="pool_size must be one or two integers >= 1, got 0"):
        layer(0)
    with pytest.raises(ShapeError, match="padding must be at most half of kernel_size"):
        shape_of(layer(2, padding=2))
    with pytest.raises(
        ShapeError, match="a window of 9 pixels does not fit 8 pixels with padding 0"
    ):
        shape_of(layer(9))
    with pytest.raises(ShapeError, match="the input must be images"):
        shape_of(layer(2), (2, 3, 8))


def test_windows_lie_side_by_side_and_what_is_left_over_is_left():
    assert shape_of(nn.MaxPool((3, 2))) == (2, 3, 2, 3)
    assert shape_of(nn.AveragePool(3, stride=1)) == (2, 3, 6, 4)


@pytest.mark.parametrize(
    "sequence",
    [lambda *layers, name: nn.Sequential(*layers, name=name),
     lambda *layers, name: nn.Sequential([*layers], name=name)],
    ids=["arguments", "list"],
)  # fmt: skip
def test_a_sequence_has_its_layers_under_its_name(sequence):
    def block(name):
        return sequence(nn.Conv2D(4, 3), nn.relu, nn.MaxPool(2), nn.flatten, name=name)

    with Tracer("float32") as tracer:
        x = tracer.input("features", (2, 3, 8, 6), "float32")
        assert block("first")(x).shape == block(None)(x).shape == (2, 24)
        assert sequence(name=None)(x) is x
    parameters = [op.symbol.data for op in tracer.module.walk() if isinstance(op, ParameterOp)]
    kernels = [name for name in parameters if name.endswith("kernel")]
    assert kernels == ["first/conv2d/kernel", "conv2d/kernel"]
    with pytest.raises(TraceError, match=r"expected layers and functions, got \['conv'\]"):
        nn.Sequential([["conv"]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.5}, r"momentum must be in 0\.\.1, got 1\.5"),
        ({"momentum": True}, r"momentum must be in 0\.\.1"),
        ({"epsilon": 0}, "epsilon must be positive, got 0"),
    ],
)
def test_a_batch_norm_that_cannot_be_is_refused(options, message):
    with pytest.raises(TraceError, match=message):
        nn.BatchNorm(**options)


def test_a_batch_norm_has_parameters_and_a_state():
    with Tracer("float32") as tracer:
        x = tracer.input("features", (2, 3, 8, 6), "float32")
        assert nn.BatchNorm()(x).shape == x.shape
        with pytest.raises(ShapeError, match="batch first"):
            nn.BatchNorm()(nn.transpose(x, (1, 0, 2, 3)))
        with pytest.raises(ShapeError, match="batch first"):
            nn.BatchNorm()(nn.sum(x, axis=(1, 2, 3)))
    stored = {op.symbol.data: op.name for op in tracer.module.walk() if isinstance(op, StoredOp)}
    assert {name: kind for name, kind in stored.items() if name.startswith("batch_norm/")} == {
        "batch_norm/gamma": "cirh.parameter",
        "batch_norm/beta": "cirh.parameter",
        "batch_norm/running_mean": "cirh.state",
        "batch_norm/running_var": "cirh.state",
    }
    for shape in ((1, 3), (4, 3, 0)):
        with pytest.raises(ShapeError, match="the variance needs more than one value per channel"):
            shape_of(nn.BatchNorm(), shape)
