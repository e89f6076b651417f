"""Layers as called in a model function."""

import pytest

from csrun import nn
from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.types import shape_of, type_of
from csrun.nn.errors import ShapeError
from csrun.nn.tracer import Tracer


def test_a_bias_has_a_value_for_each_feature():
    with Tracer("float32") as tracer:
        x = tracer.input("features", (8, 3, 5), "float32")
        assert nn.Bias(name="out")(x).shape == (8, 3, 5)
    parameters = [op for op in tracer.module.walk() if isinstance(op, ParameterOp)]
    assert [(op.symbol.data, shape_of(type_of(op.out))) for op in parameters] == [
        ("out/bias", (5,))
    ]


@pytest.mark.parametrize("layer", [nn.Bias(name="last"), nn.Dense(3, name="last")])
def test_what_has_no_features_is_refused(layer):
    with Tracer("float32") as tracer:
        x = tracer.input("features", (8,), "float32")
        expected = r"layer last: the input must be \[batch, ..., features\], got shape \[8\]"
        with pytest.raises(ShapeError, match=expected):
            layer(x)
