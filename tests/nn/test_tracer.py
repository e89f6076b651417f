"""A traced model: names, parameters, types, and attributes of its module."""

import re

import pytest

from csrun import nn
from csrun.base.mode import RunMode
from csrun.cirh import parse_module, print_module
from csrun.cirh.ops.learning import MinimizeOp
from csrun.cirh.ops.model import OutputOp, ParameterOp
from csrun.cirh.types import shape_of, type_of
from csrun.nn.errors import TraceError
from csrun.nn.tracer import Tracer


def trace(build, run_mode=RunMode.TRAIN, precision="float32", shape=(4, 2, 3)):
    """Module of a model whose logits are `build(features)`."""
    with Tracer(precision) as tracer:
        features = tracer.input("features", shape, precision)
        labels = tracer.input("labels", shape[:1], "int32")
        logits = build(nn.flatten(features))
        loss = nn.softmax_cross_entropy(logits, labels)
        train_op = nn.SGD(0.1, momentum=0.9).minimize(loss)
        return tracer.finish(run_mode, loss, train_op, [("prediction", nn.argmax(logits))])


def parameters(module):
    """Shapes of all parameters by name."""
    found = [op for op in module.ops if isinstance(op, ParameterOp)]
    return {op.symbol.data: shape_of(type_of(op.out)) for op in found}


def test_layers_are_numbered_and_parameters_carry_their_layer():
    module = trace(lambda x: nn.Dense(2)(nn.Dense(5, "relu")(nn.Dense(7)(x))))
    assert parameters(module) == {
        "dense/kernel": (6, 7),
        "dense/bias": (7,),
        "dense_1/kernel": (7, 5),
        "dense_1/bias": (5,),
        "dense_2/kernel": (5, 2),
        "dense_2/bias": (2,),
    }


def test_a_chosen_name_is_kept_and_a_made_one_steps_aside():
    module = trace(lambda x: nn.Dense(2)(nn.Dense(3)(nn.Dense(4, name="dense_1")(x))))
    names = [name for name in parameters(module) if name.endswith("kernel")]
    assert names == ["dense_1/kernel", "dense/kernel", "dense_2/kernel"]


def test_scopes_nest_and_number_their_own_layers():
    def build(x):
        x = nn.Dense(4)(x)
        for index in range(2):
            with nn.scope("h"), nn.scope(index) as scope:
                assert scope == f"h/{index}"
                x = nn.Dense(4, name="attn/qkv")(x)
                x = nn.Dense(4)(nn.Dense(4)(x))
        with nn.scope("h/0"):
            x = nn.Dense(4)(x)
        return nn.Dense(4)(x)

    names = [n.removesuffix("/kernel") for n in parameters(trace(build)) if n.endswith("kernel")]
    blocks = [f"h/{i}/{n}" for i in range(2) for n in ("attn/qkv", "dense", "dense_1")]
    assert names == ["dense", *blocks, "h/0/dense_2", "dense_1"]


def test_a_layer_inside_a_layer_has_both_names():
    with Tracer() as tracer:
        x = tracer.input("x", (4, 6), "float32")
        with tracer.layer("block", None), tracer.layer("attn", "attn"):
            y = nn.relu(nn.Dense(3)(x))
        assert tracer.builder.scope == ""
    assert y.value.owner.where == "block/attn"
    assert [*parameters(tracer.module)] == ["block/attn/dense/kernel", "block/attn/dense/bias"]


def test_a_name_is_unique_in_its_scope_alone():
    with Tracer() as tracer:
        x = tracer.input("x", (4, 6), "float32")
        with nn.scope("a"):
            nn.Dense(6, name="fc")(x)
        with nn.scope("b"):
            nn.Dense(6, name="fc")(x)
        with nn.scope("a"), pytest.raises(TraceError, match="'a/fc' is already used"):
            nn.Dense(6, name="fc")(x)


def test_a_parameter_of_a_name_that_is_taken_is_refused():
    with Tracer() as tracer, nn.scope("table"):
        tracer.parameter("weight", (2, 3), nn.initializers.ones((2, 3)))
        with pytest.raises(TraceError, match="parameter name 'table/weight' is already used"):
            tracer.parameter("weight", (2, 3), nn.initializers.ones((2, 3)))


@pytest.mark.parametrize("name", ["", "a b", "/a", "a/", "1st", -1])
def test_a_malformed_scope(name):
    with (
        Tracer(),
        pytest.raises(TraceError, match="a layer name must consist of letters, digits"),
        nn.scope(name),
    ):
        pass


def test_a_scope_outside_a_model_says_so():
    with (
        pytest.raises(
            TraceError, match=r"test_tracer.py:\d+: nn.scope\('h'\) is only valid inside a model"
        ),
        nn.scope("h"),
    ):
        pass


def test_without_bias_there_is_a_kernel_only():
    module = trace(lambda x: nn.Dense(2, use_bias=False, name="out")(x))
    assert parameters(module) == {"out/kernel": (6, 2)}


def test_a_dense_layer_works_on_the_last_axis():
    with Tracer() as tracer:
        x = tracer.input("x", (4, 5, 6), "float32")
        assert nn.Dense(3, "relu")(x).shape == (4, 5, 3)


def test_float64_reaches_every_parameter():
    assert "xf32" not in print_module(trace(nn.Dense(2), precision="float64"))


def test_only_training_minimizes():
    for mode, count in ((RunMode.TRAIN, 1), (RunMode.EVAL, 0)):
        found = [op for op in trace(nn.Dense(2), mode).ops if isinstance(op, MinimizeOp)]
        assert len(found) == count


def test_outputs_are_named_and_argmax_gives_integers():
    (output,) = [op for op in trace(nn.Dense(2)).ops if isinstance(op, OutputOp)]
    assert output.symbol.data == "prediction"
    assert str(output.value.type) == "tensor<4xi64>"


def test_a_traced_module_reads_back_as_it_prints():
    text = print_module(trace(lambda x: nn.Dense(2)(nn.Dense(5, "relu")(x))))
    assert print_module(parse_module(text)) == text


def test_tracing_twice_gives_the_same_text():
    assert print_module(trace(nn.Dense(2))) == print_module(trace(nn.Dense(2)))


def test_arithmetic_on_tensors_broadcasts_and_takes_numbers():
    with Tracer() as tracer:
        x, y = tracer.input("x", (4, 3), "float32"), tracer.input("y", (3,), "float32")
        assert (2 * x + y / 3 - 1).shape == (4, 3)
        assert (-x).dtype == "float32"
        text = print_module(tracer.module)
    assert re.findall(r"cirh\.(\w+) %", text) == ["mul", "div", "add", "sub", "neg"]


def test_a_glorot_kernel_has_the_published_bound():
    (kernel, _) = [op for op in trace(nn.Dense(2)).ops if isinstance(op, ParameterOp)]
    assert kernel.initializer.scale.value.data == pytest.approx((6 / (6 + 2)) ** 0.5, rel=1e-15)
